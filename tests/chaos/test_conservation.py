"""Sent = finished + queued + leased + put aside + dead letters, at every instant, whenever a worker dies, and whenever
the primary of their Redis does.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from config.redis import connect
from config.tiers import TIERS
from tests.chaos.books import Ledger, ReplicatedLedger
from tests.chaos.conftest import FAULTS
from tests.chaos.lone import LoneWorkers
from tests.sentinels import Watched
from tests.shards import places_of
from tests.valkey import PrivateValkey

KILLS = FAULTS * 4 or 6
FAILOVERS = min(FAULTS, 10) or 1
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


@pytest.mark.parametrize("shards", (1, 4) if FAULTS else (4,))
def test_nothing_is_lost_or_doubled(valkey: PrivateValkey, tmp_path: Path, rng: random.Random, shards: int) -> None:
    redis = valkey.client()
    # Of several, the home too: plain Celery clients send there.
    ledger = Ledger(redis, "fickle", [place.keys for place in places_of(redis, shards)])
    _keep_books(ledger, redis, valkey.url, tmp_path, rng, lambda _: None, shards)
    redis.close()


def test_nothing_is_lost_or_doubled_over_failovers(tmp_path: Path, rng: random.Random) -> None:
    watched = Watched("--appendonly", "yes")
    down: list[int] = []
    failovers: list[int] = []

    def fail_over(killed: int) -> None:
        if down and watched.primary not in down:
            # The lost one comes back, as a replica.
            watched.run(down.pop())
        elif not down and killed >= KILLS * (len(failovers) + 1) / (FAILOVERS + 1) and watched.is_whole():
            failovers.append(watched.primary)
            down.append(failovers[-1])
            watched.kill(down[0])

    try:
        redis = connect(watched.start().url)
        _keep_books(ReplicatedLedger(redis, "fickle"), redis, watched.url, tmp_path, rng, fail_over)
        redis.close()
    finally:
        watched.stop()
    print(f"{len(failovers)} failovers")
    assert len(failovers) == FAILOVERS


def _keep_books(
    ledger: Ledger,
    redis: Redis,
    url: str,
    folder: Path,
    rng: random.Random,
    between: Callable[[int], None],
    shards: int = 1,
) -> None:
    """Kill workers at random moments, and look at every moment; `between` gets the number of kills so far."""
    victims = LoneWorkers(folder, CONFIG, url, redis, shards=shards)
    looks = bereaved = killed = 0
    next_kill = deadline = 0.0
    try:
        for _ in range(PLACES):
            victims.start()
        while killed < KILLS:
            between(killed)
            now = time.monotonic()
            books = ledger.look()
            books.check(ledger.sent)
            looks += 1
            if books.waiting < 200:
                count = rng.randrange(60)
                ledger.send(range(len(ledger.sent), len(ledger.sent) + count), rng.choice(TIERS)) if count else None
            ready = _ready(victims)
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
    assert {each: redis.hgetall(ledger.keys_of[each].dead(each)) for each in books.dead ^ meant} == {}
    for task_id in books.done:
        assert json.loads(redis.get(ledger.keys_of[task_id].result(task_id)))["result"] == int(
            task_id.removeprefix("task-")
        )


def _ready(victims: LoneWorkers) -> list[subprocess.Popen[bytes]]:
    """The workers that are ready; none while no primary can be asked."""
    with suppress(RedisError):
        return victims.ready()
    return []


def _holds_a_lease(redis: Redis, pid: int) -> bool:
    with suppress(RedisError):
        return any(f"-{pid}-" in key.decode() for key in redis.scan_iter("bunch:leases:*", 1000))
    return False
