"""Redis stops, hangs, comes back, or loses a reply: each scenario has a server of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import gevent

from batching.claim.lease import Verdict
from config.redis import connect
from tasks.client.sharded_client import AnyClient, make_client
from tasks.errors import BackendUnavailable, DeadlineExceeded
from tests.fakes.proxy import LossyProxy
from tests.fakes.worker import StandInWorker, serve
from tests.gevent_scenarios.frontend_fixture import (
    ANN,
    LONG_S,
    NOBODY,
    SERVED,
    SOON_S,
    FrontendFixture,
    all_of,
    asking,
    error_of,
    output,
)
from tests.shards import places_of, servers_of, store_of
from tests.valkey import PrivateValkey
from tests.waiting import wait_until


class Processes(Protocol):
    @property
    def pids(self) -> list[int]: ...


@contextmanager
def own_server(timeout_s: float = 5.0) -> Iterator[tuple[PrivateValkey, FrontendFixture]]:
    """A server, a frontend whose commands wait for it for `timeout_s`, and a worker."""
    valkey = PrivateValkey()
    valkey.start()
    # As with one server: with a cluster requests would be held meanwhile.
    frontend = FrontendFixture(valkey.url, timeout_s, failover_wait_ms=0)
    worker = StandInWorker(valkey.url)
    worker.start()
    try:
        yield valkey, frontend
    finally:
        worker.stop()
        frontend.close()
        valkey.stop()


@contextmanager
def hanging(servers: Processes) -> Iterator[None]:
    """Make them keep their connections and answer nothing."""
    stopped = servers.pids
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def quickly(call: Callable[[], object], *, within_s: float = 10.0) -> BackendUnavailable:
    began = time.monotonic()
    error = error_of(call)
    assert isinstance(error, BackendUnavailable), repr(error)
    assert time.monotonic() - began < within_s
    assert error.retry_after_s
    return error


def a_redis_that_is_gone_is_told_at_once_and_used_again_as_soon_as_it_is_back(_: FrontendFixture) -> None:
    with own_server() as (valkey, frontend):
        assert frontend.ask("before") == {"echo": "before"}
        for _round in range(2):
            valkey.kill()
            for _attempt in range(3):
                quickly(partial(frontend.ask, "meanwhile"))
                quickly(lambda: frontend.client.receipt(frontend.submit("meanwhile", waits=False)))
                quickly(partial(frontend.client.result, "some-id"))
                quickly(partial(frontend.client.cancel, "some-id"))
            assert frontend.client.waiting == 0
            # Longer than every retry that gives up after a number of tries.
            gevent.sleep(1.5)
            valkey.start()
            # The very first one, without a restart, and without waiting for its deadline.
            began = time.monotonic()
            assert frontend.ask("after") == {"echo": "after"}
            assert time.monotonic() - began < SOON_S
            assert frontend.client.result("never-issued") is None
            wait_until(lambda: frontend.channels() == frontend.own_channels())


def callers_in_flight_end_by_their_deadlines(_: FrontendFixture) -> None:
    with own_server() as (valkey, frontend):
        waiting = [gevent.spawn(error_of, partial(frontend.ask, i, NOBODY, timeout_s=2.0)) for i in range(50)]
        wait_until(lambda: frontend.depth() == 50)
        # That they are in the queue has been heard as well, once the queue has said so of another: who does not know is
        # told at once.
        frontend.client.receipt(frontend.submit("another", NOBODY, waits=False))
        valkey.kill()
        began = time.monotonic()
        gevent.joinall(waiting, timeout=LONG_S, raise_error=True)
        assert {type(each.value) for each in waiting} == {DeadlineExceeded}
        assert time.monotonic() - began < SOON_S
        assert frontend.client.waiting == 0
        valkey.start()
        assert frontend.ask("after") == {"echo": "after"}


def answers_stored_during_an_outage_of_the_subscription_are_found(_: FrontendFixture) -> None:
    with own_server() as (_valkey, frontend):
        pendings = [frontend.submit(i, NOBODY) for i in range(20)]
        wait_until(lambda: frontend.depth() == 20)
        # Nobody may subscribe; everything else works.
        for server in servers_of(frontend.redis):
            server.config_set("maxclients", len(server.client_list(_type="normal")))
        frontend.redis.client_kill_filter(_type="pubsub")
        frontend.serve()
        gevent.sleep(0.5)
        assert not any(each.done for each in pendings)
        for server in servers_of(frontend.redis):
            server.config_set("maxclients", 10_000)
        assert [output(frontend.client.wait(each)) for each in pendings] == [{"echo": i} for i in range(20)]


def deadlines_hold_while_redis_hangs(_: FrontendFixture) -> None:
    # If a deadline waited for a command, it would wait for so long.
    with own_server(timeout_s=LONG_S) as (valkey, frontend):
        sent = frontend.submit("sent", NOBODY, timeout_s=0.6, hung_up=lambda: False)
        gone = frontend.submit("gone", NOBODY, hung_up=lambda: True)
        wait_until(lambda: frontend.depth() == 2)
        with hanging(valkey):
            began = time.monotonic()
            late = [frontend.submit(i, NOBODY, timeout_s=0.3) for i in range(5)]
            errors = [error_of(partial(frontend.client.wait, each)) for each in (*late, sent)]
            assert {type(each) for each in errors} == {DeadlineExceeded}
            assert time.monotonic() - began < SOON_S
        assert gone.task_id
        error_of(partial(frontend.client.wait, gone))
        assert frontend.client.waiting == 0


def what_nobody_waits_for_any_more_is_not_queued_late(_: FrontendFixture) -> None:
    with own_server(timeout_s=LONG_S) as (valkey, frontend):
        with hanging(valkey):
            # The first one is on its way to Redis already; the others are still here.
            first = frontend.submit("first", NOBODY, caller=ANN)
            gevent.sleep(0.05)
            late = [frontend.submit(i, NOBODY, caller=ANN, timeout_s=0.2) for i in range(5)]
            killed = gevent.spawn(frontend.ask, "killed", NOBODY, caller=ANN)
            gevent.sleep(0.05)
            killed.kill()
            for each in late:
                error_of(partial(frontend.client.wait, each))
        last = frontend.submit("last", NOBODY, caller=ANN)
        wait_until(lambda: frontend.depth() >= 2)
        assert frontend.serve() == 2
        assert [output(frontend.client.wait(each)) for each in (first, last)] == [{"echo": "first"}, {"echo": "last"}]


def a_flush_is_not_queued_twice_when_its_reply_got_lost(_: FrontendFixture) -> None:
    with own_server() as (valkey, direct):
        proxy = LossyProxy(valkey.port)
        proxy.start()
        frontend = FrontendFixture(proxy.url)
        try:
            assert frontend.ask("before", caller=ANN) == {"echo": "before"}
            for number in range(3):
                proxy.lose_reply_to(b"EVALSHA")
                pendings = [frontend.submit((number, i), NOBODY, caller=ANN) for i in range(10)]
                wait_until(lambda: proxy.lost == number + 1)  # noqa: B023 - called before the next round
                wait_until(lambda: direct.depth() >= 10)
                assert frontend.ask("after") == {"echo": "after"}
                assert direct.serve() == 10
                answers = [output(frontend.client.wait(each)) for each in pendings]
                assert answers == [{"echo": [number, i]} for i in range(10)]
        finally:
            frontend.close()
            proxy.stop()


def what_a_refused_flush_may_have_left_is_taken_back(_: FrontendFixture) -> None:
    with own_server() as (valkey, frontend):
        client = make_client(frontend.settings, places_of(connect(valkey.url, timeout_s=1.0)))
        client.start()
        try:
            wait_until(partial(_answers, client), "it answers within its second")
            with hanging(valkey):
                # Its socket takes the flush, and it will run it: its caller has been refused by then.
                pending = client.submit(asking(NOBODY, b'"refused"', caller=ANN))
                # But for one who will ask again by its key.
                kept = client.submit(asking(NOBODY, b'"kept"', idempotency_key="k", caller=ANN))
                quickly(partial(client.wait, pending))
                quickly(partial(client.wait, kept))
            wait_until(lambda: frontend.depth() == 2)
            wait_until(lambda: frontend.is_cancelled(pending.task_id))
            claim = frontend.store.claim(NOBODY, "batch", 10)
            assert [each.verdict for each in claim.entries] == [Verdict.CANCELLED, Verdict.RUN]
        finally:
            client.stop()


def _answers(client: AnyClient) -> bool:
    with suppress(BackendUnavailable):
        return bool(output(client.wait(client.submit(asking(SERVED, b"1", caller=ANN)))) == {"echo": 1})
    return False


def a_subscription_that_went_dead_is_replaced_within_seconds(_: FrontendFixture) -> None:
    with own_server() as (valkey, _direct):
        proxy = LossyProxy(valkey.port)
        proxy.start()
        frontend = FrontendFixture(proxy.url)
        try:
            pendings = [frontend.submit(i, NOBODY) for i in range(20)]
            wait_until(lambda: frontend.depth() == 20)
            # Connections of the pool lie idle, and are dead afterwards as well.
            all_of(partial(frontend.client.result, "never-issued") for _ in range(5))
            began = time.monotonic()
            assert proxy.deaden() >= 4
            # The worker's own connections are well: it answers, and the answers are heard by nobody.
            store = store_of(connect(valkey.url), "elsewhere")
            serve(store, NOBODY, "elsewhere-1")
            assert [output(frontend.client.wait(each)) for each in pendings] == [{"echo": i} for i in range(20)]
            # Their own deadlines would be later.
            assert time.monotonic() - began < SOON_S
        finally:
            frontend.close()
            proxy.stop()


def many_callers_at_once_survive_a_restart(_: FrontendFixture) -> None:
    with own_server() as (valkey, frontend):
        all_of(partial(frontend.ask, i) for i in range(200))
        valkey.kill()
        valkey.start()
        assert all_of(partial(frontend.ask, i) for i in range(200)) == [{"echo": i} for i in range(200)]
        assert frontend.client.waiting == 0
