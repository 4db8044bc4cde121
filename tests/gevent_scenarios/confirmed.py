"""`BUNCH_DURABILITY=replica`: a promise needs a replica that has heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from redis import Redis

from cli.supervisor.embedded_cluster import PRIMARIES
from config.keys import RESULT_PREFIX
from tasks.client import confirmation
from tasks.errors import BackendUnavailable
from tasks.protocol.results import Reply
from tests.clusters import Clustered
from tests.gevent_scenarios.frontend_fixture import LONG_S, NOBODY, FrontendFixture, all_of, error_of, output
from tests.gevent_scenarios.outages import hanging
from tests.shards import ON_CLUSTER, cluster_beside
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

_A_SECOND_MS = 1000


class Replicas:
    """The replica of a server, or those of the cluster beside it."""

    def __init__(self, *clients: Redis) -> None:
        self._clients = clients
        self.pids = [int(each.info("server")["process_id"]) for each in clients]

    def follow(self) -> bool:
        return all(each.execute_command("ROLE")[3] == b"connected" for each in self._clients)  # type: ignore[no-untyped-call]

    def have(self, keys: Sequence[str]) -> bool:
        names = cast("list[bytes]", [name for each in self._clients for name in each.keys(f"{RESULT_PREFIX}*")])
        return {each.encode() for each in keys} <= set(names)


@contextmanager
def replicated() -> Iterator[tuple[Replicas, FrontendFixture]]:
    """The replicas, and a frontend of their primaries."""
    primary = PrivateValkey("--repl-diskless-sync-delay", "0")
    replica = PrivateValkey("--replicaof", "127.0.0.1", str(primary.port))
    primary.start()
    if ON_CLUSTER:
        cluster_beside(primary.url, replicas=True)
        beside = cast("Clustered", primary.beside)
        replicas = Replicas(*(beside.client(number) for number in range(PRIMARIES, 2 * PRIMARIES)))
    else:
        replica.start()
        replicas = Replicas(replica.client())
    frontend = FrontendFixture(primary.url, LONG_S, durability="replica", failover_wait_ms=0)
    try:
        wait_until(replicas.follow, what="the replica follows")
        with patience(int(500 * LONG_S)):
            yield replicas, frontend
    finally:
        frontend.close()
        replica.stop()
        primary.stop()


@contextmanager
def patience(wait_ms: int) -> Iterator[None]:
    """For how long a replica is waited for: more than a second if there is one, which may be as slow as all else."""
    usual, confirmation._WAIT_MS = confirmation._WAIT_MS, wait_ms
    try:
        yield
    finally:
        confirmation._WAIT_MS = usual


def is_refused(call: Callable[[], object]) -> bool:
    error = error_of(call)
    return isinstance(error, BackendUnavailable) and "no replica" in str(error)


def what_is_promised_is_on_a_replica(_: FrontendFixture) -> None:
    with replicated() as (replicas, frontend):
        client = frontend.client
        ids = all_of([partial(_polled, frontend, number) for number in range(50)])
        assert replicas.have([frontend.result_key(each) for each in ids])
        while frontend.serve():
            pass
        assert output(_finished(client.result(ids[3]))) == {"echo": 3}

        keyed = frontend.submit("keyed", NOBODY, idempotency_key="k")
        wait_until(lambda: frontend.depth() == 1)
        frontend.serve()
        assert output(client.wait(keyed)) == {"echo": "keyed"}


def without_one_nothing_is_promised_and_callers_who_wait_are_served(_: FrontendFixture) -> None:
    with replicated() as (replicas, frontend):
        client = frontend.client
        done = _polled(frontend, "done")
        frontend.serve()
        with hanging(replicas), patience(_A_SECOND_MS):
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
    with replicated() as (_replicas, frontend):
        polls = frontend.submit("polls", NOBODY, waits=False)
        wait_until(lambda: frontend.depth() == 1)
        frontend.redis.flushall()
        assert is_refused(partial(frontend.client.receipt, polls))


def _polled(frontend: FrontendFixture, value: object) -> str:
    return frontend.client.receipt(frontend.submit(value, NOBODY, waits=False))


def _finished(reply: Reply | None) -> Reply:
    assert reply is not None
    return reply
