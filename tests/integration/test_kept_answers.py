"""The room that kept answers take, on a real server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis import Redis

from batching.claim.store import Keep, RedisBatchStore, Settled
from batching.coalescing import Coalesced
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
    return answers(redis, store, [question], size, keep_ms)[0]


def answers(
    redis: Redis, store: RedisBatchStore, questions: Sequence[int], size: int, keep_ms: int = 60_000
) -> list[str]:
    """The same, of a whole batch."""
    names = [f"{each:032d}" for each in questions]
    redis.lpush(KEYS.queue("m", Tier.PAID), *(our_message(f"t{each}", b"1") for each in questions))
    claim = store.claim("m", f"b{questions[0]}", len(questions))
    head = b'{"status":"SUCCESS","result":"' + b"x" * size + b'","task_id":'
    settled = [
        Settled(
            position,
            f"t{each}",
            1000,
            "",
            head + b'"t"' + _TAIL,
            asked=Coalesced(name, "m", 0, keep_ms, True, 1, 0),
        )
        for position, (each, name) in enumerate(zip(questions, names, strict=True), 1)
    ]
    assert store.finish(claim.batch_id, settled, last=True)
    return names


def taken(redis: Redis) -> int:
    rows = redis.lrange(KEYS.kept(), 0, -1)
    return int(rows[-1].split(b";")[2]) - int(rows[0].split(b";")[1]) if rows else 0


def kept(redis: Redis, name: str) -> bool:
    return bool(redis.exists(KEYS.cached(name)))


def test_the_oldest_make_room_and_what_is_taken_is_what_there_is(redis: Redis, store: RedisBatchStore) -> None:
    names = [answer(redis, store, number, 15_000) for number in range(100)]
    there = [kept(redis, name) for name in names]
    assert not there[0]
    assert there == sorted(there)
    assert sum(there) == redis.llen(KEYS.kept()) == MOST // 15_400
    sizes = sum(redis.strlen(KEYS.cached(name)) for name in names)
    assert sizes <= taken(redis) <= MOST
    assert taken(redis) - sizes == 300 * sum(there)


def test_no_batch_makes_all_others_go(redis: Redis, store: RedisBatchStore) -> None:
    names = [name for batch in range(4) for name in answers(redis, store, range(100 * batch, 100 * batch + 60), 15_000)]
    there = [kept(redis, name) for name in names]
    assert there == sorted(there)
    # As many as there is room for, but for the rest of one row.
    assert MOST // 15_400 - 2 <= sum(there) <= MOST // 15_400
    assert taken(redis) <= MOST
    sizes = sum(redis.strlen(KEYS.cached(name)) for name in names)
    assert taken(redis) - sizes == 300 * sum(there)


def test_an_answer_that_would_push_out_many_is_not_kept(redis: Redis, store: RedisBatchStore) -> None:
    small = answer(redis, store, 1, 10)
    large = answer(redis, store, 2, MOST // 64)
    assert (kept(redis, small), kept(redis, large)) == (True, False)


def test_the_same_answer_again_takes_no_more_than_there_is(redis: Redis, store: RedisBatchStore) -> None:
    for _ in range(200):
        name = answer(redis, store, 1, 15_000)
    assert redis.strlen(KEYS.cached(name)) <= taken(redis) <= MOST
    assert kept(redis, name)


def test_what_has_expired_is_not_counted(redis: Redis, store: RedisBatchStore) -> None:
    gone = answer(redis, store, 1, 1000, keep_ms=1)
    while kept(redis, gone):
        pass
    there = answer(redis, store, 2, 10)
    (row,) = redis.lrange(KEYS.kept(), 0, -1)
    assert row.endswith(b";;" + there.encode())
    assert taken(redis) == redis.strlen(KEYS.cached(there)) + 300


def test_outcomes_that_answer_nobody_else_leave_no_trace(redis: Redis, store: RedisBatchStore) -> None:
    redis.lpush(KEYS.queue("m", Tier.PAID), our_message("t", b"1"))
    store.claim("m", "b", 1)
    assert store.finish("b", [Settled(1, "t", 1000, "", b"{}")], last=True)
    assert not redis.keys("bunch:cached*")
    assert not redis.keys("bunch:kept*")
