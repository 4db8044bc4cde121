"""Whatever Redis says, no role ends of it: each goes on as soon as Redis serves again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pytest
from celery import Celery
from kombu import pools
from redis import Redis
from redis.exceptions import RedisError

from cli.supervisor.ports import free_port
from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"
"""
# Long enough for whatever asks now and then to be told so: kombu's BRPOP returns each second.
LASTS_S = 3.0


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateValkey]:
    each = PrivateValkey()
    each.start()
    yield each
    each.stop()


@pytest.fixture(scope="module")
def stack(server: PrivateValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("refused"), MODELS)
    try:
        yield each.start("--web-workers=1", redis_url=server.url, flower_port=0, admission="off")
        each.stop()
    finally:
        each.kill()


Trouble: TypeAlias = Callable[[Redis], AbstractContextManager[object]]


@contextmanager
def demoted(redis: Redis, *, answers_reads: bool = True) -> Iterator[None]:
    """READONLY, and UNBLOCKED for whoever waits in a BRPOP; without reads MASTERDOWN to everything."""
    redis.config_set("replica-serve-stale-data", "yes" if answers_reads else "no")
    redis.replicaof("127.0.0.1", str(free_port()))
    try:
        yield
    finally:
        redis.replicaof("NO", "ONE")
        redis.config_set("replica-serve-stale-data", "yes")


def demoted_and_silent(redis: Redis) -> AbstractContextManager[None]:
    return demoted(redis, answers_reads=False)


@contextmanager
def full(redis: Redis) -> Iterator[None]:
    """OOM."""
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


@contextmanager
def alone(redis: Redis) -> Iterator[None]:
    """NOREPLICAS."""
    redis.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        redis.config_set("min-replicas-to-write", 0)


@contextmanager
def forbidden(redis: Redis) -> Iterator[None]:
    """NOPERM, to all that steers and all that is queued."""
    redis.execute_command("ACL", "SETUSER", "default", "-@write", "-@scripting")
    try:
        yield
    finally:
        redis.execute_command("ACL", "SETUSER", "default", "+@all")


@contextmanager
def locked(redis: Redis) -> Iterator[None]:
    """NOAUTH, to every connection that is new."""
    redis.config_set("requirepass", "another")
    try:
        yield
    finally:
        redis.config_set("requirepass", "")


TROUBLES: tuple[Trouble, ...] = (demoted, demoted_and_silent, full, alone, forbidden, locked)


@pytest.mark.parametrize("connections", ["kept", "cut"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda each: each.__name__)
def test_every_role_lives_on(stack: Stack, server: PrivateValkey, trouble: Trouble, connections: str) -> None:
    before = [(row.name, row.pid) for row in stack.rows()]
    with server.client() as redis, trouble(redis):
        if connections == "cut":
            for kind in ("normal", "pubsub"):
                with contextlib.suppress(RedisError):
                    redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        time.sleep(LASTS_S)
    wait_until(lambda: all(_serves(stack, number) for number in range(3)), what="it serves again")
    wait_until(lambda: len(_who_hear(server.url)) == 2, what="both workers hear remote control")
    assert [(row.name, row.pid) for row in stack.rows()] == before, stack.last_logs()
    assert all(row.restarts == 0 for row in stack.rows())


def test_every_role_lives_through_a_server_that_loads_its_data(stack: Stack, server: PrivateValkey) -> None:
    """LOADING to everything."""
    before = [(row.name, row.pid) for row in stack.rows()]
    with server.client() as redis:
        for number in range(400):
            redis.set(f"ballast:{number}", "x" * 10_000)
        redis.save()
    server.kill()
    server.start("--key-load-delay", "7000", "--loading-process-events-interval-bytes", "1024")
    wait_until(lambda: all(_serves(stack, number) for number in range(3)), what="it serves again")
    assert [(row.name, row.pid) for row in stack.rows()] == before, stack.last_logs()


def _who_hear(url: str) -> list[object]:
    # Kombu keeps connections for a whole process, and these have been cut.
    pools.reset()
    with Celery("asker", broker=url, set_as_current=False) as app:
        return list(app.control.ping(timeout=2))


def _serves(stack: Stack, number: int) -> bool:
    """A question that was asked lately would be answered without a worker."""
    return Api(stack.port).post("/v1/inference", {"input": number}, Cache_Control="no-cache").status == 200
