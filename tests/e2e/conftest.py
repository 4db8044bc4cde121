"""One stack for all tests here: two frontends, two workers, models that need no weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from redis import Redis

from config.keys import Shard
from tests.e2e.client import Api, connected
from tests.e2e.gate import Gate
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

KEYS = Shard()
CALLBACK_SECRET = "a secret of the tests' own stack"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("stack"))
    try:
        # Most tests must not meet refusals at admission, or a limit of seconds while the machine stands still;
        # `test_overload` has a stack of its own.
        options = ("--web-workers=2", "--workers=2", "--no-flower")
        pushes = {"callback_hosts": "127.0.0.1, *.example.org", "callback_secret": CALLBACK_SECRET}
        yield each.start(*options, admission="off", **PATIENT, **pushes)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="session")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


@pytest.fixture
def well(api: Api, stack: Stack) -> Api:
    """The API of a stack in which nothing is broken any more.

    A breaker that an earlier test has opened is reset: good requests may all go to the other worker. Reports of workers
    are up to a heartbeat old, so they count from the second one on: the first may have been on its way.
    """
    with stack.redis() as redis:

        def beats() -> dict[bytes, float]:
            return dict(cast("list[tuple[bytes, float]]", redis.zrange(KEYS.workers(), 0, -1, withscores=True)))

        def heard_again() -> None:
            before = beats()
            wait_until(lambda: all(beats().get(name) != at for name, at in before.items()), what="all workers beat")

        def is_well() -> bool:
            for model, state in api.get("/internal/health").json["breakers"].items():
                if state != "closed":
                    stack.manage("reset", model)
            heard_again()
            heard_again()
            return bool(api.get("/internal/health").json["status"] == "healthy")

        wait_until(is_well, what=lambda: f"the stack is healthy: {stack.manage('workers', '--json').stdout}")
    return api


@pytest.fixture
def store(stack: Stack) -> Iterator[Redis]:
    """The stack's Redis."""
    with stack.redis() as client:
        yield client


@pytest.fixture
def gate(tmp_path: Path, api: Api) -> Iterator[Gate]:
    """A gate, closed at first and opened at the latest at the end of the test."""
    each = Gate(tmp_path / "gate", api)
    yield each
    each.open()
