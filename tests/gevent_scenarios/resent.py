"""Redis comes back as another server, and has forgotten all, or nothing: each scenario has a server of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import msgspec

from config.redis import connect
from config.tiers import Tier
from tasks.client import router
from tasks.client.flush import Posted
from tasks.client.sharded_client import AnyClient
from tasks.errors import BackendUnavailable, DeadlineExceeded
from tasks.observability.metrics import RESENT
from tasks.protocol.caller import Caller
from tests.gevent_scenarios.frontend_fixture import (
    NOBODY,
    SHARED,
    FrontendFixture,
    all_of,
    clients_of,
    error_of,
    output,
    owner_in,
)
from tests.shards import SHARDS, servers_of, store_of
from tests.valkey import FAITHFUL, PrivateValkey
from tests.waiting import PATIENCE_S, wait_until

FORGETFUL = ("--appendonly", "no")


@contextmanager
def server(*arguments: str, **settings: Any) -> Iterator[tuple[PrivateValkey, FrontendFixture]]:
    valkey = PrivateValkey(*arguments)
    valkey.start()
    frontend = FrontendFixture(valkey.url, **settings)
    try:
        yield valkey, frontend
    finally:
        frontend.close()
        valkey.stop()


def replaced(valkey: PrivateValkey, frontend: FrontendFixture, kept: int | None = None) -> None:
    """Return once the frontend has found out what the next life of the server still has.

    `kept`: how many of the requests the frontend can send again; all that wait by default.
    """
    # Callers of a flush that has not been answered at the kill are refused, queued or not.
    wait_until(lambda: len(kept_of(frontend.client)) == (frontend.client.waiting if kept is None else kept))
    # One that has nothing to send again asks nothing.
    clients = [each for each in clients_of(frontend.client) if each.router.kept()]
    asked = [each.outbox.recognised for each in clients]
    valkey.kill()
    valkey.start()

    def has_asked() -> bool:
        pairs = zip(clients, asked, strict=True)
        return all(each.connected and each.outbox.recognised > before for each, before in pairs)

    wait_until(has_asked, what="the frontend has asked")


def kept_of(client: AnyClient) -> list[Posted]:
    return [posted for each in clients_of(client) for posted in each.router.kept()]


def resent() -> float:
    return float(RESENT._value.get())


def whoever_waits_is_sent_again_to_a_server_that_has_forgotten_them(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        pendings = [frontend.submit(number, NOBODY) for number in range(300)]
        wait_until(lambda: frontend.depth() == 300)
        replaced(valkey, frontend)
        wait_until(lambda: frontend.depth() == 300)
        assert resent() == 300
        while frontend.serve():
            pass
        replies = [frontend.client.wait(each) for each in pendings]
        assert [output(each) for each in replies] == [{"echo": number} for number in range(300)]
        assert [each.task_id for each in replies] == [each.task_id for each in pendings]
        assert frontend.client.resendable_bytes == 0


def what_the_server_has_is_left_alone_wherever_it_is(_: FrontendFixture) -> None:
    with server(*FAITHFUL) as (valkey, frontend):
        store = store_of(connect(valkey.url), "another")
        finished, leased, paused = (frontend.submit(each, NOBODY) for each in ("finished", "leased", "paused"))
        wait_until(lambda: frontend.depth() == 3)
        # Nobody hears of it, as if the reply had been lost.
        first = store.claim(NOBODY, "first", 1)
        stored = b'{"status":"SUCCESS","result":"found","task_id":"%b"}' % finished.task_id.encode()
        frontend.redis.set(frontend.result_key(finished.task_id), stored)
        store.finish("first", (), last=True)
        held = store.claim(NOBODY, "second", 1)
        store.claim(NOBODY, "third", 1)
        store.put_aside(NOBODY, "third", [(1, 60_000)], last=True)
        queued = frontend.submit("queued", NOBODY)
        leader, joined = frontend.submit("same", SHARED), frontend.submit("same", SHARED)
        wait_until(lambda: (frontend.depth(), frontend.waiting()) == (1, 2))
        assert (len(first.entries), len(held.entries)) == (1, 1)

        replaced(valkey, frontend)
        assert resent() == 0
        assert (frontend.depth(), frontend.depth(SHARED), frontend.waiting()) == (1, 1, 2)
        assert output(frontend.client.wait(finished)) == "found"
        kept = {each.out.task_id for each in kept_of(frontend.client)}
        assert kept == {each.task_id for each in (leased, paused, queued, leader, joined)}


def they_are_not_refused_a_second_time(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        once_a_minute = Caller("k", "o", Tier.PAID, rpm=1, burst=1)
        first = frontend.submit("first", NOBODY, caller=once_a_minute)
        wait_until(lambda: frontend.depth() == 1)
        replaced(valkey, frontend)
        wait_until(lambda: frontend.depth() == 1)
        frontend.serve()
        assert output(frontend.client.wait(first)) == {"echo": "first"}


def what_is_kept_for_it_is_bounded(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        for each in clients_of(frontend.client):
            each.router._max_kept_bytes = 4000
        pendings = [frontend.submit(number, NOBODY) for number in range(20)]
        wait_until(lambda: frontend.depth() == 20)
        # They go in one flush, to each shard.
        wait_until(lambda: all(each.router.kept() for each in clients_of(frontend.client) if each.waiting))
        kept = {posted.out.task_id for posted in kept_of(frontend.client)}
        assert 0 < len(kept) < 20
        assert 0 < frontend.client.resendable_bytes <= 4000 * len(clients_of(frontend.client))
        replaced(valkey, frontend, len(kept))
        wait_until(lambda: frontend.depth() == len(kept))
        assert frontend.serve() == len(kept)
        for number, pending in enumerate(pendings):
            if pending.task_id in kept:
                assert output(frontend.client.wait(pending)) == {"echo": number}
            else:
                # Nobody has it any more.
                assert not pending.done
                frontend.client.drop(pending)
        assert frontend.client.resendable_bytes == 0


def a_request_that_meets_an_outage_is_held(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        frontend.settings = msgspec.structs.replace(frontend.settings, failover_wait_ms=20_000)
        frontend.client = frontend.make_client()
        wait_until(lambda: frontend.client.connected)
        frontend.submit("before", NOBODY)
        wait_until(lambda: frontend.depth() == 1)
        valkey.kill()
        pendings = [frontend.submit(number, NOBODY) for number in range(5)]
        gone = gevent.spawn(frontend.client.result, "no-such-id")
        short = frontend.submit("short", NOBODY, timeout_s=0.3)
        # Its deadline comes first.
        assert isinstance(error_of(lambda: frontend.client.wait(short)), DeadlineExceeded)
        assert not any(each.done for each in pendings)
        valkey.start()
        assert gone.get() is None
        # The short one may be sent too, with no time left, so that a claim drops it.
        wait_until(lambda: frontend.depth() >= 6)
        while frontend.serve():
            pass
        assert [output(frontend.client.wait(each)) for each in pendings] == [{"echo": each} for each in range(5)]


def but_not_for_longer_than_configured(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        frontend.settings = msgspec.structs.replace(frontend.settings, failover_wait_ms=300)
        frontend.client = client = frontend.make_client()
        wait_until(lambda: client.connected)
        valkey.kill()
        began = time.monotonic()
        waits = partial(client.wait, frontend.submit("x", NOBODY))
        polls = partial(client.receipt, frontend.submit("x", NOBODY, waits=False))
        errors = all_of([partial(error_of, call) for call in (waits, polls, partial(client.cancel, "x"))])
        assert all(isinstance(each, BackendUnavailable) for each in errors), errors
        assert time.monotonic() - began >= 0.3
        valkey.start()


def keeping_requests_costs_redis_no_call(_: FrontendFixture) -> None:
    # A subscription on which nothing is heard asks for a sign of life each second. The process ends with its scenario.
    router._SILENCE_S = PATIENCE_S
    with server(*FORGETFUL) as (_valkey, frontend):
        for number in range(SHARDS):
            frontend.submit("loads the script", NOBODY, caller=owner_in(frontend.places, number))
            wait_until(lambda: frontend.depth() == number + 1)  # noqa: B023 - called before the next round
        for each in servers_of(frontend.redis):
            each.config_resetstat()
        pendings = [frontend.submit(number, NOBODY) for number in range(10)]
        wait_until(lambda: all(each.sent for each in pendings))
        stats = [each.info("commandstats") for each in servers_of(frontend.redis)]
        assert sum(each.get("cmdstat_evalsha", {"calls": 0})["calls"] for each in stats) == 1
        assert not {name for each in stats for name in each} & {"cmdstat_wait", "cmdstat_role", "cmdstat_ping"}
