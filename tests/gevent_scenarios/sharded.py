"""A frontend whose requests are in four shards or more, on two servers: shards 0 and 1 on the first, 2 and 3 on the
second.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from os import kill
from signal import SIGCONT, SIGSTOP
from typing import Any

import gevent
import msgspec

from batching.claim.store import RedisBatchStore
from config.keys import Shard
from config.redis import connect
from config.shards import Place, Places
from config.tiers import Tier
from tasks.client import outbox, sharded_client
from tasks.client.sharded_client import ShardedClient
from tasks.errors import BackendUnavailable, RateLimited
from tasks.protocol.caller import Caller
from tasks.protocol.ids import belongs_to, shard_of
from tests.fakes.worker import serve
from tests.gevent_scenarios.frontend_fixture import (
    KEPT,
    LONG_S,
    NOBODY,
    SOON_S,
    FrontendFixture,
    all_of,
    asking,
    error_of,
    output,
    owner_in,
    settings_for,
)
from tests.valkey import PrivateValkey
from tests.waiting import wait_until


class ShardedFixture:
    """The started client, and a worker's store in each place."""

    def __init__(self, first: str, second: str, count: int, **options: Any) -> None:
        # Who waits for one that hangs waits for so long.
        near, far = connect(first, timeout_s=LONG_S), connect(second, timeout_s=LONG_S)
        shards = tuple(Place(Shard(f"{{s{n}}}"), near if n < count // 2 else far, n) for n in range(count))
        self.places = Places(Place(Shard(), near), shards)
        # As one server would be, and not held for a failover.
        self._settings = settings_for(first, **{"failover_wait_ms": 0} | options)
        self.stores = [RedisBatchStore(place.redis, "scenario", place.keys) for place in self.places]
        self._batches = 0
        self._clients: list[ShardedClient] = []
        self.client = self.make_client()

    def make_client(self) -> ShardedClient:
        """Another frontend, from the view of the shards."""
        client = ShardedClient(self._settings, self.places)
        client.start()
        self._clients.append(client)
        wait_until(lambda: client.connected)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.stop()

    def serve(self, model: str = NOBODY) -> list[int]:
        """Act as the worker for one batch of each place; returns how many there were in each."""
        self._batches += 1
        return [serve(store, model, f"scenario-{self._batches}", 1000) for store in self.stores]

    def depths(self, model: str = NOBODY) -> list[int]:
        return [store.look(model).depth for store in self.stores]

    def has(self, count: int) -> bool:
        return sum(self.depths()) == count

    def is_quiet(self) -> bool:
        """Return whether no flush is under way."""
        return not any(each.has_unsent or each.outbox._began_at < math.inf for each in self.client._all)

    def owner_of(self, number: int) -> Caller:
        return owner_in(self.places, number)

    def owners_of(self, number: int, count: int) -> list[str]:
        """Several owners whose requests are in this shard."""
        names = (f"owner-{n}" for n in range(1000))
        return list(islice((each for each in names if self.places.for_owner(each).number == number), count))


@contextmanager
def sharded(
    frontend: FrontendFixture, count: int = 4, **options: Any
) -> Iterator[tuple[ShardedFixture, PrivateValkey]]:
    """The client, and its second server."""
    far = PrivateValkey()
    far.start()
    fixture = ShardedFixture(frontend.url, far.url, count, **options)
    try:
        yield fixture, far
    finally:
        fixture.close()
        far.stop()


def every_caller_gets_its_own_answer_from_the_shard_of_its_owner(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, _):
        callers = [fixture.owner_of(n) for n in range(4)]
        asked = [
            (callers[n % 4], fixture.client.submit(asking(NOBODY, b"%d" % n, caller=callers[n % 4])))
            for n in range(200)
        ]
        wait_until(lambda: fixture.depths() == [50, 50, 50, 50, 0])
        assert fixture.serve() == [50, 50, 50, 50, 0]
        for n, (caller, pending) in enumerate(asked):
            assert output(fixture.client.wait(pending)) == {"echo": n}
            assert shard_of(pending.task_id) == n % 4
            assert belongs_to(pending.task_id, caller.owner)
        assert fixture.client.waiting == 0


def quotas_of_keys_in_sixteen_shards_are_exact_over_two_frontends(frontend: FrontendFixture) -> None:
    with sharded(frontend, 16) as (fixture, _):
        frontends = [fixture.client, fixture.make_client()]
        # Three keys in each shard. One more each minute: none while the scenario runs.
        owners = [owner for n in range(16) for owner in fixture.owners_of(n, 3)]
        callers = [Caller(f"key-{n}", owner, Tier.PAID, 1, 1 + n % 7) for n, owner in enumerate(owners)]
        asked = [
            (caller, each, each.submit(asking(NOBODY, b"%d" % turn, caller=caller)))
            for turn in range(5)
            for caller in callers
            for each in frontends
        ]
        let_in = sum(min(10, caller.burst or 0) for caller in callers)
        wait_until(lambda: sum(fixture.depths()) >= let_in)
        fixture.serve()
        served: Counter[str] = Counter()
        for caller, each, pending in asked:
            with suppress(RateLimited):
                each.wait(pending)
                served[caller.key_id] += 1
        assert served == {caller.key_id: caller.burst for caller in callers}


def whoever_polls_is_answered_by_the_shard_that_the_id_tells(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, _):
        client = fixture.client
        ids = [
            client.receipt(client.submit(asking(NOBODY, b"%d" % n, caller=fixture.owner_of(n), waits=False)))
            for n in range(4)
        ]
        assert client.cancel(ids[3]) == "PENDING"
        watching = [partial(client.result, each, LONG_S) for each in ids]
        fixture.serve()
        replies = all_of(watching)
        assert [output(each) for each in replies[:3]] == [{"echo": n} for n in range(3)]
        assert replies[3].status == "REVOKED"
        client.forget(ids[0])
        assert client.result(ids[0]) is None


def names_of_callers_are_found_with_and_without_an_owner(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, _):
        client, owner = fixture.client, fixture.owner_of(2)
        owned = client.receipt(client.submit(asking(NOBODY, b"1", caller=owner, waits=False, request_id="mine")))
        free = client.receipt(client.submit(asking(NOBODY, b"2", waits=False, request_id="mine")))
        assert client.task_of("mine", owner.owner) == owned
        assert client.task_of("mine") == free
        assert client.task_of("nobody's") == "nobody's"


def a_repeat_without_an_owner_is_recognised(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, _):
        client = fixture.client
        keyed = [
            client.receipt(client.submit(asking(NOBODY, b"1", waits=False, idempotency_key="once"))) for _ in range(5)
        ]
        assert len(set(keyed)) == 1
        assert sum(fixture.depths()) == 1
        asked = [client.submit(asking(KEPT, b'"the same"')) for _ in range(20)]
        wait_until(lambda: sum(fixture.depths(KEPT)) == 1)
        fixture.serve(KEPT)
        assert {msgspec.json.encode(output(client.wait(each))) for each in asked} == {b'{"echo":"the same"}'}
        # It is a cached answer by now.
        assert output(client.wait(client.submit(asking(KEPT, b'"the same"')))) == {"echo": "the same"}
        assert sum(fixture.depths(KEPT)) == 0


def requests_of_nobody_spread_and_those_of_one_moment_stay_together(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, _):
        for n in range(40):
            for _ in range(10):
                fixture.client.submit(asking(NOBODY, b"1"))
            wait_until(partial(fixture.has, 10 * (n + 1)))
            # Redis has them before the client has heard so, and a shard is left that does not answer soon.
            wait_until(fixture.is_quiet)
        depths = fixture.depths()
        assert all(depth % 10 == 0 for depth in depths)
        # The less deep of two: nearly even.
        assert min(depths[:4]) >= 60
        assert depths[4] == 0


def a_shard_that_is_down_holds_up_nobody_in_another(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, far):
        client = fixture.client
        lost = client.submit(asking(NOBODY, b"1", caller=fixture.owner_of(2), timeout_s=2.0))
        wait_until(lambda: sum(fixture.depths()) == 1)
        far.stop()
        kept = [client.submit(asking(NOBODY, b"%d" % n, caller=fixture.owner_of(n % 2))) for n in range(100)]
        refused = error_of(partial(client.wait, client.submit(asking(NOBODY, b"1", caller=fixture.owner_of(3)))))
        assert isinstance(refused, BackendUnavailable)
        near = fixture.stores[:2]
        wait_until(lambda: [store.look(NOBODY).depth for store in near] == [50, 50])
        for store in near:
            serve(store, NOBODY, "one", 1000)
        assert [output(client.wait(each)) for each in kept] == [{"echo": n} for n in range(100)]
        error_of(partial(client.wait, lost))
        assert not client.connected
        assert client.waiting == 0


def _spread(fixture: ShardedFixture, count: int = 60, model: str = NOBODY, *, answered: bool = False) -> list[int]:
    """The number of some requests of nobody that went to each shard, one after the other; with `answered` each once the
    flush of the one before it was.
    """
    asked = []
    for n in range(count):
        asked.append(fixture.client.submit(asking(model, b"%d" % n, timeout_s=2.0)))
        gevent.sleep(0.005)
        if answered:
            wait_until(fixture.is_quiet)
    for each in asked:
        fixture.client.drop(each)
    shards = [shard_of(each.task_id) for each in asked]
    return [shards.count(n) for n in range(4)]


def requests_of_nobody_do_not_go_to_a_shard_that_is_down(frontend: FrontendFixture) -> None:
    # On a busy machine the flushes of both others may be late at once, and then any will do. The process ends with its
    # scenario.
    sharded_client._LATE_S = LONG_S
    # Held while it may fail over, and refused at once: either is no reason to send it more.
    for wait_ms in (5000, 0):
        with sharded(frontend, failover_wait_ms=wait_ms) as (fixture, far):
            far.stop()
            wait_until(lambda: not any(each.connected for each in fixture.client._shards[2:]))
            assert _spread(fixture)[2:] == [0, 0]
            # Nor do they where an answer may be there already.
            assert _spread(fixture, model=KEPT)[2:] == [0, 0]


def requests_of_nobody_do_not_go_to_a_shard_that_hangs(frontend: FrontendFixture) -> None:
    # As above: what is late here would be so on any machine.
    sharded_client._LATE_S = 0.5
    with sharded(frontend, failover_wait_ms=5000) as (fixture, far):
        kill(far.pid, SIGSTOP)
        try:
            # Each of the two gets some, and the flush with it is not answered.
            wait_until(lambda: _spread(fixture) and all(each.is_troubled(0.5) for each in fixture.client._shards[2:]))
            assert sum(_spread(fixture)[2:]) == 0
        finally:
            kill(far.pid, SIGCONT)
        wait_until(lambda: sum(_spread(fixture, 20)[2:]) > 0)


def requests_of_nobody_do_not_go_to_a_shard_that_takes_none(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, far):
        far.client().config_set("maxmemory", 1)
        _spread(fixture, answered=True)
        began = time.monotonic()
        tries = sum(_spread(fixture, answered=True)[2:])
        # Somebody tries each of the two again, once a second.
        assert tries <= 2 * (1 + (time.monotonic() - began) / outbox._AVOIDED_S)
        far.client().config_set("maxmemory", 0)
        wait_until(lambda: sum(_spread(fixture, 20)[2:]) > 0)


def the_newest_of_equal_names_is_found_whatever_its_shard(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, far):
        client = fixture.client
        for _ in range(8):
            for _ in range(4):
                newest = client.receipt(client.submit(asking(NOBODY, b"1", waits=False, request_id="again")))
                # Longer than a server may pause between two commands of one read.
                gevent.sleep(0.01)
            # One server is read later than the other.
            kill(far.pid, SIGSTOP)
            goes_on = gevent.spawn_later(0.08, kill, far.pid, SIGCONT)
            assert client.task_of("again") == newest
            goes_on.join()


def the_payloads_of_a_shard_that_hangs_are_not_waited_for(frontend: FrontendFixture) -> None:
    with sharded(frontend) as (fixture, far):
        kill(far.pid, SIGSTOP)
        try:
            with gevent.Timeout(SOON_S):
                assert fixture.client.blob_usage().all_bytes == 0
        finally:
            kill(far.pid, SIGCONT)
