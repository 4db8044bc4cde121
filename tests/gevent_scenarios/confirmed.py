"""`BUNCH_DURABILITY=replica`: a promise needs a replica that has heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from tasks.errors import BackendUnavailable
from tasks.protocol.results import Reply
from tests.gevent_scenarios.frontend_fixture import NOBODY, FrontendFixture, all_of, error_of, output
from tests.gevent_scenarios.outages import hanging
from tests.valkey import PrivateValkey
from tests.waiting import wait_until


@contextmanager
def replicated() -> Iterator[tuple[PrivateValkey, FrontendFixture]]:
    """The replica, and a frontend of its primary."""
    primary = PrivateValkey("--repl-diskless-sync-delay", "0")
    replica = PrivateValkey("--replicaof", "127.0.0.1", str(primary.port))
    primary.start()
    replica.start()
    frontend = FrontendFixture(primary.url)
    frontend.settings = msgspec.structs.replace(frontend.settings, durability="replica")
    frontend.client = frontend.make_client()
    try:
        with replica.client() as behind:
            wait_until(lambda: behind.execute_command("ROLE")[3] == b"connected", what="the replica follows")
        yield replica, frontend
    finally:
        frontend.close()
        replica.stop()
        primary.stop()


def is_refused(call: Callable[[], object]) -> bool:
    error = error_of(call)
    return isinstance(error, BackendUnavailable) and "no replica" in str(error)


def what_is_promised_is_on_a_replica(_: FrontendFixture) -> None:
    with replicated() as (replica, frontend):
        client = frontend.client
        ids = all_of([partial(_polled, frontend, number) for number in range(50)])
        with replica.client() as behind:
            assert behind.exists(*map(frontend.result_key, ids)) == 50
        while frontend.serve():
            pass
        assert output(_finished(client.result(ids[3]))) == {"echo": 3}

        keyed = frontend.submit("keyed", NOBODY, idempotency_key="k")
        wait_until(lambda: frontend.depth() == 1)
        frontend.serve()
        assert output(client.wait(keyed)) == {"echo": "keyed"}


def without_one_nothing_is_promised_and_callers_who_wait_are_served(_: FrontendFixture) -> None:
    with replicated() as (replica, frontend):
        client = frontend.client
        done = _polled(frontend, "done")
        frontend.serve()
        with hanging(replica):
            polls = frontend.submit("polls", NOBODY, waits=False)
            keyed = frontend.submit("keyed", NOBODY, idempotency_key="k")
            waits = frontend.submit("waits", NOBODY)
            wait_until(lambda: frontend.depth() == 3)
            assert is_refused(partial(client.receipt, polls))
            # Its caller was told that it is not accepted.
            wait_until(lambda: frontend.is_cancelled(polls.task_id))
            frontend.serve()
            assert output(client.wait(waits)) == {"echo": "waits"}
            assert is_refused(partial(client.wait, keyed))
            assert is_refused(partial(client.result, done))
        # The same key, and now there is the answer.
        again = frontend.submit("keyed", NOBODY, idempotency_key="k")
        assert output(client.wait(again)) == {"echo": "keyed"}
        assert output(_finished(client.result(done))) == {"echo": "done"}


def what_another_server_has_never_heard_of_is_not_confirmed_by_it(_: FrontendFixture) -> None:
    with replicated() as (_replica, frontend):
        polls = frontend.submit("polls", NOBODY, waits=False)
        wait_until(lambda: frontend.depth() == 1)
        frontend.redis.flushall()
        assert is_refused(partial(frontend.client.receipt, polls))


def _polled(frontend: FrontendFixture, value: object) -> str:
    return frontend.client.receipt(frontend.submit(value, NOBODY, waits=False))


def _finished(reply: Reply | None) -> Reply:
    assert reply is not None
    return reply
