"""How much room kept answers take, on a real server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from batching.asked import Asked
from batching.store import Keep, RedisBatchStore, Settled
from config.keys import Shard
from config.tiers import Tier
from tests.fakes.messages import our_message

KEYS = Shard()
MOST = 1_048_576
_TAIL = b',"bunch":{}}'


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    return RedisBatchStore(redis, "w1", keep=Keep(answer_bytes=MOST))


def answer(redis: Redis, store: RedisBatchStore, question: int, size: int, keep_ms: int = 60_000) -> str:
    """Have the model answer it with so many bytes; the question's name."""
    name = f"{question:064x}"
    redis.lpush(KEYS.queue("m", Tier.PAID), our_message(f"t{question}", b"1"))
    claim = store.claim("m", f"b{question}", 1)
    head = b'{"status":"SUCCESS","result":"' + b"x" * size + b'","task_id":'
    settled = Settled(1, f"t{question}", 1000, "", head + b'"t"' + _TAIL)
    asked = Asked(name, "m", 0, keep_ms, len(head), _TAIL, b"", True, 1, 0)
    assert store.finish(claim.batch_id, [replace(settled, asked=asked)], last=True)
    return name


def taken(redis: Redis) -> int:
    return int(redis.get(f"{KEYS.cached()}:bytes") or 0)


def kept(redis: Redis, name: str) -> bool:
    return bool(redis.exists(KEYS.cached(name)))


def test_the_oldest_make_room_and_what_is_taken_is_what_there_is(redis: Redis, store: RedisBatchStore) -> None:
    names = [answer(redis, store, number, 15_000) for number in range(100)]
    there = [kept(redis, name) for name in names]
    assert not there[0]
    assert there == sorted(there)
    assert sum(there) == redis.zcard(KEYS.cached()) == MOST // 15_400
    sizes = sum(redis.strlen(KEYS.cached(name)) for name in names)
    assert sizes <= taken(redis) <= MOST
    assert taken(redis) - sizes == 300 * sum(there)


def test_an_answer_that_would_push_out_many_is_not_kept(redis: Redis, store: RedisBatchStore) -> None:
    small = answer(redis, store, 1, 10)
    large = answer(redis, store, 2, MOST // 64)
    assert (kept(redis, small), kept(redis, large)) == (True, False)


def test_the_same_answer_again_takes_no_more_room(redis: Redis, store: RedisBatchStore) -> None:
    answer(redis, store, 1, 1000)
    before = taken(redis)
    answer(redis, store, 1, 2000)
    assert (taken(redis), redis.zcard(KEYS.cached())) == (before + 1000 + 0, 1)


def test_what_has_expired_is_not_counted(redis: Redis, store: RedisBatchStore) -> None:
    gone = answer(redis, store, 1, 1000, keep_ms=1)
    while kept(redis, gone):
        pass
    there = answer(redis, store, 2, 10)
    assert redis.zrange(KEYS.cached(), 0, -1) == [f"{there};{redis.strlen(KEYS.cached(there)) + 300}".encode()]
    assert taken(redis) == redis.strlen(KEYS.cached(there)) + 300


def test_a_count_that_is_wrong_mends_itself(redis: Redis, store: RedisBatchStore) -> None:
    redis.set(f"{KEYS.cached()}:bytes", 10 * MOST)
    name = answer(redis, store, 1, 10)
    assert kept(redis, name)
    assert taken(redis) == redis.strlen(KEYS.cached(name)) + 300


def test_outcomes_that_answer_nobody_else_leave_no_trace(redis: Redis, store: RedisBatchStore) -> None:
    redis.lpush(KEYS.queue("m", Tier.PAID), our_message("t", b"1"))
    store.claim("m", "b", 1)
    assert store.finish("b", [Settled(1, "t", 1000, "", b"{}")], last=True)
    assert not redis.keys("bunch:cached*")
