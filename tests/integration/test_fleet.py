"""The registry of workers and what waits, as operators and readiness checks see them."""

from __future__ import annotations

import msgspec
import pytest
from redis import Redis

from batching.claim.registry import WorkerRegistry
from batching.claim.store import Blame, RedisBatchStore
from batching.fast_header import FastHeader, write_fast_header
from config.keys import Shard
from config.tiers import Tier
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import ExecutorRow, Fleet, WorkerRow, ready_models, utilisation
from tests.shards import places_of

KEYS = Shard()


def now_ms(redis: Redis) -> int:
    seconds, micros = redis.time()
    return seconds * 1000 + micros // 1000


def worker(name: str, *models: ExecutorRow, state: str = "running") -> WorkerRow:
    return WorkerRow(name, "host", 1, 0.0, models, state)


def beat(redis: Redis, row: WorkerRow) -> list[str]:
    return WorkerRegistry(redis, lease_ttl_s=5.0).beat(row.id, msgspec.json.encode(row))


def silence(redis: Redis, name: str, ms: int) -> None:
    redis.zadd(KEYS.workers(), {name: now_ms(redis) - ms})


def put(redis: Redis, task_id: str, tier: Tier = Tier.PAID, waited_ms: int = 0) -> None:
    now = now_ms(redis)
    stamp = FastHeader(now + 90_000, now + 60_000, now - waited_ms, 0, 0, False, 60_000, task_id)
    redis.lpush(KEYS.queue("m", tier), write_fast_header(stamp) + b'"}}')


def test_workers_are_what_they_say_of_themselves(redis: Redis) -> None:
    row = worker("w1", ExecutorRow("m", "m/0", "ready", busy=0.5), ExecutorRow("x", "x/0", "failed", "no weights"))
    beat(redis, row)
    (read,) = Fleet(redis).workers()
    assert msgspec.structs.replace(read, age_ms=0) == row
    assert 0 <= read.age_ms < 5000


def test_who_is_silent_or_leaving_is_not_healthy(redis: Redis) -> None:
    for row in (worker("lives"), worker("silent"), worker("leaves", state="stopping")):
        beat(redis, row)
    silence(redis, "silent", 5_100)
    fleet = Fleet(redis, lease_ttl_s=5.0)
    assert {row.id for row in fleet.workers()} == {"lives", "silent", "leaves"}
    assert [row.id for row in fleet.healthy()] == ["lives"]


def test_nobody_is_there(redis: Redis) -> None:
    assert Fleet(redis).workers() == []
    assert utilisation([]) == 0.0


def test_a_worker_whose_words_have_expired_is_not_listed(redis: Redis) -> None:
    beat(redis, worker("w1"))
    redis.delete(KEYS.worker("w1"))
    assert Fleet(redis).workers() == []


def test_what_can_be_served_and_how_busy_it_is() -> None:
    rows = [
        worker("w1", ExecutorRow("a", "a/0", "ready", busy=1.0), ExecutorRow("b", "b/0", "starting", busy=1.0)),
        worker("w2", ExecutorRow("a", "a/0", "ready", busy=0.5)),
    ]
    assert ready_models(rows) == {"a"}
    assert utilisation(rows) == 0.75


def test_queues_have_depth_age_and_arrivals(redis: Redis) -> None:
    put(redis, "a", waited_ms=3000)
    put(redis, "b", waited_ms=1000)
    put(redis, "c", Tier.FREE)
    second = redis.time()[0]
    # Also the next ones: the clock goes on until they are read.
    for each in range(second - 9, second + 60):
        redis.hset(KEYS.arrivals(each), KEYS.queue("m", Tier.PAID), 10)
    enterprise, paid, free = QueueReader(places_of(redis), Fleet(redis)).queues(["m"])
    assert [(row.tier, row.depth) for row in (enterprise, paid, free)] == [("enterprise", 0), ("paid", 2), ("free", 1)]
    assert 3000 <= paid.oldest_ms < 33_000
    assert enterprise.oldest_ms == 0
    assert paid.arrival_rps == 10.0
    assert free.arrival_rps == 0.0


def test_a_lease_of_the_dead_comes_back_whoever_notices(redis: Redis) -> None:
    for i in range(4):
        put(redis, f"t{i}")
    dead = RedisBatchStore(redis, "dead")
    dead.claim("m", "b1", 2)
    dead.claim("m", "b2", 2)
    silence(redis, "dead", 5_100)
    assert beat(redis, worker("w1")) == ["dead"]
    gone: list[str] = []
    registry = WorkerRegistry(redis, lease_ttl_s=5.0, on_gone=gone.append)
    assert registry.reclaim("dead") == 4
    assert registry.reclaim("dead") == 0
    # Counted once, however many have noticed.
    assert gone == ["dead"]
    assert redis.llen(KEYS.queue("m", Tier.PAID)) == 4
    assert beat(redis, worker("w1")) == []


@pytest.mark.parametrize("silent_ms", [0, 4_000])
def test_who_beats_again_in_time_keeps_its_leases(redis: Redis, silent_ms: int) -> None:
    put(redis, "a")
    RedisBatchStore(redis, "slow").claim("m", "b1", 1)
    silence(redis, "slow", silent_ms)
    assert beat(redis, worker("w1")) == []
    assert redis.exists(KEYS.lease("b1"))


def test_a_lease_that_vanished_is_struck_from_the_list(redis: Redis) -> None:
    put(redis, "a")
    RedisBatchStore(redis, "dead").claim("m", "b1", 1)
    redis.delete(KEYS.lease("b1"))
    silence(redis, "dead", 6_000)
    assert WorkerRegistry(redis, 5.0).reclaim("dead") == 0
    assert not redis.exists(KEYS.leases("dead"))
    assert redis.zscore(KEYS.workers(), "dead") is None


def test_a_worker_that_leaves_is_forgotten_once_it_holds_nothing(redis: Redis) -> None:
    put(redis, "a")
    store = RedisBatchStore(redis, "w1")
    beat(redis, worker("w1"))
    store.claim("m", "b1", 1)
    gone: list[str] = []
    registry = WorkerRegistry(redis, 5.0, on_gone=gone.append)
    assert not registry.deregister("w1")
    assert [row.id for row in Fleet(redis).workers()] == ["w1"]
    store.give_back("m", "b1", Blame.NOTHING)
    assert registry.deregister("w1")
    assert Fleet(redis).workers() == []
    # It has left by itself: nobody lost it.
    assert registry.reclaim("w1") == 0
    assert gone == []
