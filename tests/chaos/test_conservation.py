"""Sent = finished + queued + leased + put aside + dead letters, at every instant, whenever a worker dies, and whatever
happens to its Redis: the primary is lost in each way, it refuses writes, connections break.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
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
from tests.chaos.troubles import ALL, Scene, Troubled, kill_primary, stop_worker
from tests.sentinels import Watched
from tests.shards import places_of
from tests.valkey import PrivateValkey

KILLS = FAULTS * 4 or 6
# Every kind in turn, as often as there are faults.
TROUBLES = FAULTS or 2
# And their home: plain Celery clients send there.
SHARDS = 4
WORKERS = 3
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


@pytest.mark.parametrize("shards", (1, SHARDS) if FAULTS else (SHARDS,))
def test_nothing_is_lost_or_doubled(valkey: PrivateValkey, tmp_path: Path, rng: random.Random, shards: int) -> None:
    redis = valkey.client()
    ledger = Ledger(redis, "fickle", [place.keys for place in places_of(redis, shards)])
    _keep_books(ledger, redis, LoneWorkers(tmp_path, CONFIG, valkey.url, redis, shards=shards), rng)
    redis.close()


def test_nothing_is_lost_or_doubled_over_failovers(tmp_path: Path, rng: random.Random) -> None:
    watched = Watched("--appendonly", "yes")
    rounds = [rng.sample(ALL, len(ALL)) for _ in range(-(-TROUBLES // len(ALL)))]
    plan = [each for one in rounds for each in one][:TROUBLES] if FAULTS else [kill_primary, stop_worker]
    try:
        redis = connect(watched.start().url)
        ledger = ReplicatedLedger(redis, "fickle", [place.keys for place in places_of(redis, SHARDS)])
        victims = LoneWorkers(tmp_path, CONFIG, watched.url, redis, shards=SHARDS)
        # Its random numbers are its own, since it is a thread.
        troubled = Troubled(Scene(watched, victims, random.Random(rng.random())), plan, KILLS)
        try:
            _keep_books(ledger, redis, victims, rng, troubled.heed)
        finally:
            troubled.end()
        redis.close()
    finally:
        watched.stop()
    print(dict(Counter(troubled.done)))
    assert troubled.done == [each.__name__ for each in plan]


def _keep_books(
    ledger: Ledger,
    redis: Redis,
    victims: LoneWorkers,
    rng: random.Random,
    heed: Callable[[int], bool] = lambda killed: False,
) -> None:
    """Kill workers at random moments, and look at every moment; `heed` gets the number of kills so far, and tells
    whether there is more to come.
    """
    looks = bereaved = killed = 0
    next_kill = deadline = 0.0
    try:
        for _ in range(WORKERS):
            victims.start()
        # On a busy machine most of them die before their first batch; then there are more of them.
        while heed(killed) or killed < KILLS or bereaved < KILLS / 3:
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
