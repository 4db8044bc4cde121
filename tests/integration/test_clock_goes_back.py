"""Redis' clock goes back, as when a failover leads to a host with another one: what is from the future is forgotten.

A server's clock cannot be turned in a test. What it leaves behind can: times that lie ahead of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from redis import Redis

from batching.claim.registry import ModelThroughput, WorkerRegistry
from batching.claim.store import RedisBatchStore
from batching.fast_header import read_fast_header
from config.keys import Shard
from config.redis import Line, Script
from config.tiers import Tier
from tasks.fleet.registry_reader import Fleet
from tasks.protocol.quota import Quota
from tests.fakes.door import MODEL, Door, reasons
from tests.waiting import wait_until

KEYS = Shard()
# The shortest is by some seconds longer than a beat counts for (`FRESH_MS` of capacity.lua).
JUMPS_S = [5.0, 60.0, 86_400.0]
TTL_S = 0.3


@pytest.fixture
def door(redis: Redis) -> Iterator[Door]:
    door = Door(redis)
    yield door
    door.close()


def ahead_ms(redis: Redis, seconds: float) -> float:
    now_s, micros = redis.time()
    return now_s * 1000 + micros // 1000 + seconds * 1000


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_key_at_its_burst_waits_for_its_burst_at_most(redis: Redis, door: Door, jump_s: float) -> None:
    quota = Quota.of("alice", 60, 2)
    assert reasons(door.send(Tier.PAID, 3, quota=quota)) == ["", "", "rate"]
    # Of before the jump: two requests' worth ahead of that time.
    redis.set(KEYS.quota("alice"), f"{(ahead_ms(redis, jump_s) + 2000) * 1000:.0f}")
    (refused,) = door.send(Tier.PAID, 1, quota=quota) or [None]
    assert refused is None or refused.retry_after_s <= 2.0


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_what_was_learnt_of_the_fleet_is_learnt_anew(redis: Redis, door: Door, jump_s: float) -> None:
    WorkerRegistry(redis, 5.0).beat("w1", b"{}", {MODEL: ModelThroughput(2, 50.0, 0.1, 0.2)})
    door.send(Tier.PAID, 1)
    kept = redis.get(KEYS.capacity(MODEL))
    assert struct.unpack_from("<2d", kept)[1] == 100.0
    redis.set(KEYS.capacity(MODEL), struct.pack("<d", ahead_ms(redis, jump_s)) + kept[8:], px=int(jump_s * 1000))
    WorkerRegistry(redis, 5.0).beat("w1", b"{}", {MODEL: ModelThroughput(1, 50.0, 0.1, 0.2)})
    # Of a worker that has died since.
    redis.hset(KEYS.pace(MODEL), "w2", f"{ahead_ms(redis, jump_s):.0f};9;50.0000;100.00;200.00")
    door.send(Tier.PAID, 1)
    assert struct.unpack_from("<2d", redis.get(KEYS.capacity(MODEL)))[1] == 50.0


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_worker_that_died_before_it_is_missed_after_the_lease_ttl(redis: Redis, jump_s: float) -> None:
    register = WorkerRegistry(redis, TTL_S)
    register.beat("alive", b"{}")
    register.beat("dead", b"{}")
    redis.zadd(KEYS.workers(), {"dead": ahead_ms(redis, jump_s), "alive": ahead_ms(redis, jump_s)})
    assert register.beat("alive", b"{}") == []

    def missed() -> bool:
        time.sleep(TTL_S / 5)
        return register.beat("alive", b"{}") == ["dead"]

    wait_until(missed, "the dead one is missed")


def test_nobody_counts_as_alive_by_a_beat_from_the_future(redis: Redis) -> None:
    WorkerRegistry(redis, 5.0).beat("w1", _ROW)
    assert len(Fleet(redis).healthy()) == 1
    redis.zadd(KEYS.workers(), {"w1": ahead_ms(redis, 3600)})
    assert Fleet(redis).healthy() == []


def test_the_age_of_what_was_queued_in_the_future_is_not_known(redis: Redis, door: Door) -> None:
    """A policy would hold back its batch for as long as the jump."""
    door.send(Tier.PAID, 1)
    queue = KEYS.queue(MODEL, Tier.PAID)
    message = redis.lindex(queue, 0)
    store = RedisBatchStore(redis, "w1")
    enqueued_ms = store.look(MODEL).oldest_ms
    assert enqueued_ms > 0
    redis.lset(queue, 0, message.replace(b"%d" % enqueued_ms, b"%d" % ahead_ms(redis, 3600)))
    assert store.look(MODEL).oldest_ms == 0
    assert store.look(MODEL).depth == 1


def test_a_retry_does_not_wait_for_the_clock_to_come_back(redis: Redis, door: Door) -> None:
    """Celery's `eta` does: it names a moment, and not a pause."""
    door.send(Tier.PAID, 2)
    store = RedisBatchStore(redis, "w1")
    entries = store.claim(MODEL, "b1", 2).entries
    store.put_aside(MODEL, "b1", [(1, 100)], last=False)
    store.put_aside(MODEL, "b1", [(2, 100)], last=True, count_attempt=False)
    for member in redis.zrange(KEYS.delayed(MODEL), 0, -1):
        redis.zadd(KEYS.delayed(MODEL), {member: ahead_ms(redis, 3600)})
    assert store.peek({MODEL: frozenset()}) == {MODEL}
    assert store.look(MODEL).depth == 1
    (again,) = store.claim(MODEL, "b2", 2).entries
    assert read_fast_header(again.message).task_id == read_fast_header(entries[0].message).task_id
    assert redis.zcard(KEYS.delayed(MODEL)) == 1
    assert store.peek({MODEL: frozenset()}) == set()


def test_a_script_that_is_forgotten_between_its_loading_and_its_call_runs_all_the_same(redis: Redis) -> None:
    line = Line(redis)
    line.command("PING")
    connection, calls = line._connection, []
    send = connection.send_packed_command

    def send_after_a_flush(packed: object, **options: object) -> None:
        calls.append(packed)
        redis.script_flush()
        send(packed, **options)

    connection.send_packed_command = send_after_a_flush
    add = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert [line.script(add, ["n"], [2]) for _ in range(3)] == [2, 4, 6]
    assert len(calls) >= 6
    line.close()


_ROW = b'{"id":"w1","hostname":"h","pid":1,"started_at":1.0}'
