"""Sent = finished + queued + leased + put aside + dead letters, at every instant, whenever a worker dies."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from config.tiers import TIERS
from tests.chaos.books import KEYS, Ledger
from tests.chaos.conftest import FAULTS
from tests.chaos.lone import LoneWorkers
from tests.valkey import PrivateValkey

KILLS = FAULTS * 4 or 6
PLACES = 3
PATIENCE_S = 90.0
CONFIG = """\
[models.fickle]
source = "tests.chaos.models:Fickle"
max_batch_size = 16
max_attempts = 90
"""
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180 + 20 * KILLS)]


@pytest.fixture
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


def test_nothing_is_lost_or_doubled(valkey: PrivateValkey, tmp_path: Path, rng: random.Random) -> None:
    redis = valkey.client()
    ledger = Ledger(redis, "fickle")
    victims = LoneWorkers(tmp_path, CONFIG, valkey.url, redis)
    looks = bereaved = killed = 0
    next_kill = deadline = 0.0
    try:
        for _ in range(PLACES):
            victims.start()
        while killed < KILLS:
            now = time.monotonic()
            books = ledger.look()
            books.check(ledger.sent)
            looks += 1
            if books.waiting < 200:
                count = rng.randrange(60)
                ledger.send(range(len(ledger.sent), len(ledger.sent) + count), rng.choice(TIERS)) if count else None
            ready = victims.ready()
            if ready and now >= next_kill:
                victim = rng.choice(ready)
                victims.kill(victim)
                killed += 1
                bereaved += _holds_a_lease(redis, victim.pid)
                victims.start()
                next_kill, deadline = now + rng.uniform(0.0, 0.6), now + PATIENCE_S
            assert not deadline or now < deadline, "no worker becomes ready"
            time.sleep(rng.uniform(0.0, 0.02))
        deadline = time.monotonic() + PATIENCE_S
        while (books := ledger.look()).waiting:
            books.check(ledger.sent)
            assert time.monotonic() < deadline, books
            time.sleep(0.1)
        books.check(ledger.sent)
    finally:
        victims.end()

    print(f"{killed} kills, {bereaved} with a lease, {len(ledger.sent)} requests, {looks} looks")
    assert bereaved >= KILLS / 3
    meant = {each for each in ledger.sent if int(each.removeprefix("task-")) % 50 == 7}
    assert {each: redis.hgetall(KEYS.dead(each)) for each in books.dead ^ meant} == {}
    for task_id in books.done:
        assert json.loads(redis.get(KEYS.result(task_id)))["result"] == int(task_id.removeprefix("task-"))
    redis.close()


def _holds_a_lease(redis: Redis, pid: int) -> bool:
    return any(f"-{pid}-" in key.decode() for key in redis.scan_iter("bunch:leases:*", 1000))
