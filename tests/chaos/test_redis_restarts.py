"""Redis restarts under load, again and again: nobody else has to, and nothing grows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.chaos.callers import Callers
from tests.chaos.conftest import FAULTS
from tests.chaos.stage import left_in
from tests.e2e.client import connected
from tests.e2e.stack import Stack
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

RESTARTS = FAULTS or 5
# What Python and its allocator may do; a leak of one connection's buffers a restart would be more.
MORE_BYTES = 24 * 1024 * 1024
# However busy the machine is: what is lost is not answered within this either.
PATIENT = {"queue_timeout_ms": 60_000, "request_timeout_ms": 60_000}
CONFIG = """\
[models.steady]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 20, item_ms = 0.5 }
"""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240 + 30 * RESTARTS)]


class Vitals:
    """Memory, open files and connections of everything but Redis."""

    def __init__(self, stack: Stack, redis: Redis) -> None:
        roles = [psutil.Process(pid) for role in ("web", "worker", "ops") for pid in stack.pids(role)]
        self.processes = [*roles, *(child for each in roles for child in each.children(recursive=True))]
        self.bytes = {each.pid: each.memory_info().rss for each in self.processes}
        self.files = {each.pid: each.num_fds() for each in self.processes}
        self.clients = redis.info("clients")["connected_clients"]


@pytest.fixture
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey("--appendonly", "yes")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stack(valkey: PrivateValkey, tmp_path: Path) -> Iterator[Stack]:
    each = Stack(tmp_path, CONFIG)
    try:
        yield each.start("--web-workers=2", "--workers=1", "--no-flower", redis_url=valkey.url, **PATIENT)
        each.stop()
    finally:
        each.kill()


def _callers(stack: Stack) -> Callers:
    return Callers(stack.url, "steady", count=12, timeout_s=PATIENT["request_timeout_ms"] / 1000)


def test_everybody_comes_back_by_himself(stack: Stack, valkey: PrivateValkey, rng: random.Random) -> None:
    with connected(stack.port) as api, valkey.client() as redis, _callers(stack) as callers:
        wait_until(lambda: len(callers.told) > 500, what="the load runs")
        before = Vitals(stack, redis)
        for number in range(RESTARTS):
            valkey.kill()
            time.sleep(rng.choice((0.0, 0.2, 1.0) if FAULTS else (0.0, 0.2)))
            valkey.start()
            # The first one, not one of the next.
            first = api.infer({"restart": number}, "steady")
            assert (first.status, first.json.get("output")) == (200, {"restart": number}), first
            time.sleep(rng.uniform(0.0, 0.5))
            answered = len(callers.told)
            wait_until(lambda: len(callers.told) > answered + 200, what="the load goes on")  # noqa: B023
        time.sleep(1.0)
        after = Vitals(stack, redis)

    callers.check()
    assert set(callers.codes()) <= {"OK", "BACKEND_UNAVAILABLE"}
    assert callers.codes()["OK"] > callers.asked / 2
    assert {each.pid for each in after.processes} == {each.pid for each in before.processes}
    assert all(row.restarts == 0 for row in stack.rows())
    assert after.clients <= before.clients + 2
    for pid, files in after.files.items():
        assert files <= before.files[pid] + 3, psutil.Process(pid).cmdline()
        assert after.bytes[pid] <= before.bytes[pid] + MORE_BYTES, psutil.Process(pid).cmdline()
    with valkey.client() as redis:
        wait_until(lambda: left_in(redis) == {}, what="nothing is left")
