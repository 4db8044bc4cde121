"""The frontend process of the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import gevent
import msgspec
from redis import Redis

from batching.claim.lease import Entry
from batching.claim.store import Claim
from batching.fast_header import read_fast_header
from config.keys import Shard
from config.redis import connect
from config.settings import ModelSettings, Settings
from config.shards import Places
from config.tiers import Tier
from tasks.client.client import Client
from tasks.client.pending import Pending
from tasks.client.sharded_client import AnyClient, ShardedClient, make_client
from tasks.client.submission import Submission
from tasks.errors import BunchError, DeadlineExceeded
from tasks.protocol.caller import ANYBODY, Caller
from tasks.protocol.ids import place_of
from tasks.protocol.results import Reply
from tests.fakes.worker import finish, serve
from tests.shards import everywhere, places_of, redis_settings, store_of
from tests.waiting import wait_until

KEYS = Shard()
SERVED = "m"
"""Has a worker; `NOBODY` has none but the scenario itself, `SMALL` has room for three."""
NOBODY = "nobody"
SMALL = "small"
KEPT = "kept"
SHARED = "shared"
"""Equal requests of it share one computation; the scenario is its worker."""
"""Its answers are kept; the scenario is its worker."""
LONG_S = 60.0
SOON_S = LONG_S / 2
"""Longer than anything takes here that waits for no deadline, however busy the machine is."""
_LOOKS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
ANN = Caller("key-of-ann", "ann", Tier.PAID)
"""An owner without a limit: all of her requests are in one shard."""


def settings_for(url: str, **more: Any) -> Settings:
    models = {
        name: ModelSettings(name=name, source="tests:Nothing", max_queue_depth=depth, cache=False)
        for name, depth in ((SERVED, 20_000), (NOBODY, 20_000), (SMALL, 3))
    }
    models[SHARED] = ModelSettings(name=SHARED, source="tests:Nothing", cache=False, collapse=True)
    models[KEPT] = ModelSettings(name=KEPT, source="tests:Nothing", cache=True)
    # Scenarios take their time between a request and the worker that they are: two seconds are soon over.
    return Settings(models=models, default_model=SERVED, **redis_settings(url), **{"queue_timeout_ms": 60_000} | more)


class FrontendFixture:
    """The started client of one frontend, and a Redis client for the scenario."""

    def __init__(self, url: str, timeout_s: float = 5.0, **settings: Any) -> None:
        self.url = url
        # So long its clients wait for one reply of Redis.
        self._timeout_s = timeout_s
        self.settings = settings_for(url, **settings)
        self.redis: Redis = everywhere(connect(url))
        self.places = places_of(self.redis)
        self.keys = [place.keys for place in self.places]
        self.store = store_of(self.redis, "scenario")
        self._clients: list[AnyClient] = []
        self._batches = 0
        self.client = self.make_client()
        wait_until(lambda: self.client.connected)

    def make_client(self) -> AnyClient:
        """Another frontend, from the view of Redis; it may take a moment until it listens."""
        client = make_client(self.settings, places_of(connect(self.url, timeout_s=self._timeout_s)))
        client.start()
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.stop()

    def submit(self, value: Any, model: str = SERVED, timeout_s: float = LONG_S, **options: Any) -> Pending:
        return self.client.submit(asking(model, msgspec.json.encode(value), timeout_s=timeout_s, **options))

    def ask(self, value: Any, model: str = SERVED, timeout_s: float = LONG_S, **options: Any) -> Any:
        """Submit and wait; returns the output."""
        return output(self.client.wait(self.submit(value, model, timeout_s, **options)))

    def serve(self, model: str = NOBODY) -> int:
        """Act as the worker for one batch."""
        self._batches += 1
        return serve(self.store, model, f"scenario-{self._batches}", 1000)

    def depth(self, model: str = NOBODY) -> int:
        return self.store.look(model).depth

    def depths(self, model: str) -> tuple[int, ...]:
        return self.store.look(model).depths

    def waiting(self) -> int:
        """The number of callers that wait for an answer to a shared question, including the first."""
        joined = sum(map(self.redis.hlen, self.redis.keys("bunch:joined*:*")))
        return len(self.redis.keys("bunch:asked*:*")) + joined

    def claim(self, model: str) -> Claim:
        self._batches += 1
        return self.store.claim(model, f"scenario-{self._batches}", 64)

    def outlive(self, message: bytes) -> None:
        """Wait until a claim would find a message too late, by the clock of Redis.

        A caller gets its answer a moment before; and Redis counts from when the message reached it.
        """
        header = read_fast_header(message)
        assert header is not None
        late_ms = header.deadline_ms

        def has_passed() -> bool:
            seconds, microseconds = self.redis.time()
            return 1000 * seconds + microseconds // 1000 > late_ms

        wait_until(has_passed, "its deadline has passed")

    def turn(self, model: str) -> Sequence[Entry]:
        """Act as the worker, as in `serve`; returns the claimed entries."""
        claimed = self.claim(model)
        finish(self.store, claimed, model)
        return claimed.entries

    def channels(self) -> list[str]:
        """Channels with a subscriber, without the one for revoked requests, which every frontend has."""
        heard = cast("list[bytes]", [*self.redis.pubsub_channels(), *self.redis.pubsub_shardchannels()])
        revoked = {each.revoked_channel() for each in self.keys}
        return sorted({each.decode() for each in heard} - revoked)

    def own_channels(self) -> list[str]:
        """The channels of the first client, in the order of `channels`."""
        return channels_of(self.client)

    def listeners(self, channel: str) -> int:
        """The number of those who have subscribed to it."""
        found = [*self.redis.pubsub_numsub(channel), *self.redis.pubsub_shardnumsub(channel)]
        return sum(int(count) for _, count in found)

    def flushes(self) -> int:
        """How many flushes the first client has sent."""
        return sum(each.outbox.flushes for each in clients_of(self.client))

    def cancelled(self) -> int:
        """How many requests a claim would drop."""
        return sum([self.redis.zcard(each.cancelled()) for each in self.keys])

    def is_cancelled(self, task_id: str) -> bool:
        return any(self.redis.zscore(each.cancelled(), task_id) is not None for each in self.keys)

    def keys_of(self, task_id: str) -> Shard:
        """The names of the shard of a request."""
        return place_of(self.places, task_id).keys

    def result_key(self, task_id: str) -> str:
        return self.keys_of(task_id).result(task_id)

    def next_message(self, model: str, tier: Tier) -> bytes:
        """The next message of a queue that has requests in one shard only."""
        (found,) = (raw for each in self.keys if (raw := self.redis.lindex(each.queue(model, tier), -1)))
        return cast("bytes", found)


def clients_of(client: AnyClient) -> tuple[Client, ...]:
    """The client of each place."""
    return client._all if isinstance(client, ShardedClient) else (client,)


def channels_of(client: AnyClient) -> list[str]:
    return sorted(each.router.channel for each in clients_of(client))


def owner_in(places: Places, number: int) -> Caller:
    """An owner whose requests are in this shard."""
    names = (f"owner-{n}" for n in range(1000))
    owner = next(each for each in names if places.for_owner(each) is places.shards[number])
    return Caller(f"key-of-{owner}", owner, Tier.PAID)


def asking(
    model: str,
    input: bytes,
    tier: Tier = Tier.PAID,
    *,
    timeout_s: float = LONG_S,
    caller: Caller | None = None,
    **options: Any,
) -> Submission:
    """A submission without a caller, unless `caller` is given."""
    return Submission(model, caller or ANYBODY[tier], input, timeout_s, **options)


def output(reply: Reply) -> Any:
    return msgspec.json.decode(reply.result)


def found_by_the_last_look(frontend: FrontendFixture, value: Any, model: str = SERVED, **options: Any) -> Any:
    """The output of a request whose end nobody is told of: it is found just before its deadline.

    Several are sent, and the first that is found counts: who stands still just before a deadline has no look, and an
    answer may take longer than the shortest of them.
    """
    pendings = [frontend.submit(value, model, timeout_s, **options) for timeout_s in _LOOKS_S]
    try:
        for pending in pendings:
            with suppress(DeadlineExceeded):
                return output(frontend.client.wait(pending))
    finally:
        for pending in pendings:
            frontend.client.drop(pending)
    raise AssertionError("no result was found before a deadline")


def error_of(call: Callable[[], Any]) -> BunchError:
    """The error that the call raised."""
    try:
        got = call()
    except BunchError as error:
        return error
    raise AssertionError(f"nothing was raised, but {got!r} came back")


def wait_all(frontend: FrontendFixture, pendings: Iterable[Pending]) -> list[Reply | BunchError]:
    """Every answer in order, with an error in the place of its request."""
    answers: list[Reply | BunchError] = []
    for pending in pendings:
        try:
            answers.append(frontend.client.wait(pending))
        except BunchError as error:
            answers.append(error)
    return answers


def all_of(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run each in a greenlet of its own; returns their results in order. The first error is raised."""
    greenlets = [gevent.spawn(call) for call in calls]
    done: Sequence[gevent.Greenlet[..., Any]] = gevent.joinall(greenlets, timeout=2 * LONG_S, raise_error=True)
    assert len(done) == len(greenlets), "some never returned"
    return [each.value for each in greenlets]
