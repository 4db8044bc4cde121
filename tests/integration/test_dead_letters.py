"""Requests that were given up: kept, bounded, and run again as they were."""

from __future__ import annotations

import msgspec
import pytest
from redis import Redis

from batching.claim.store import Blame, Keep, RedisBatchStore, Settled
from batching.fast_header import read_fast_header
from config.tiers import Tier
from tasks.fleet.dead_letters import DeadLetters
from tasks.protocol.results import DeadLetter
from tests.integration.queueing import KEYS, MODEL, now_ms, put
from tests.shards import places_of


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    return RedisBatchStore(redis, "w1")


def test_dead_letters_are_kept_with_their_message_and_bounded(redis: Redis) -> None:
    store = RedisBatchStore(redis, "w1", keep=Keep(count=3))
    messages = {}
    for i in range(5):
        messages[f"t{i}"] = put(redis, f"t{i}")
        store.claim(MODEL, f"b{i}", 1)
        store.finish(f"b{i}", [Settled(1, f"t{i}", 1000, "", b"{}", b'{"reason":"x"}')], last=True)
    assert redis.zrange(KEYS.dead(), 0, -1) == [b"t2", b"t3", b"t4"]
    assert redis.hgetall(KEYS.dead("t4")) == {b"message": messages["t4"], b"rank": b"1", b"record": b'{"reason":"x"}'}
    assert not redis.exists(KEYS.dead("t0"), KEYS.dead("t1"))


def test_a_replayed_dead_letter_runs_again_under_its_own_id(store: RedisBatchStore, redis: Redis) -> None:
    put(redis, "t0", limit_in_ms=50)
    store.claim(MODEL, "b0", 1)
    store.give_back(MODEL, "b0", Blame.SUSPECT)
    store.claim(MODEL, "b1", 1)
    record = DeadLetter("t0", MODEL, "paid", "died", "InferenceFailed", "", 2, 1, "b1", 0, 0.0)
    store.finish("b1", [Settled(1, "t0", 1000, "", b"{}", msgspec.json.encode(record))], last=True)
    letters = DeadLetters(places_of(redis))
    assert [letter.id for letter in letters.newest()] == ["t0"]
    earliest = now_ms(redis)
    assert letters.replay("t0", 30.0, 60.0)
    latest = now_ms(redis)
    assert not letters.replay("t0", 30.0, 60.0)
    assert letters.ids() == []
    assert msgspec.json.decode(redis.get(KEYS.result("t0")))["status"] == "PENDING"
    claim = store.claim(MODEL, "b2", 1)
    stamp = read_fast_header(claim.entries[0].message)
    assert (stamp.task_id, stamp.attempt, stamp.lost, stamp.tracked) == ("t0", 0, 0, True)
    assert earliest <= stamp.deadline_ms - 30_000 <= latest


@pytest.mark.parametrize("headers", ["{}", '{"lang": "py", "empty": []}'])
def test_a_replayed_message_of_a_celery_client_is_as_it_was(store: RedisBatchStore, redis: Redis, headers: str) -> None:
    message = f'{{"body": "W10=", "headers": {headers}, "properties": {{"x": 1}}}}'.encode()
    redis.lpush(KEYS.queue(MODEL, Tier.PAID), message)
    for batch in ("b0", "b1"):
        store.claim(MODEL, batch, 1)
        store.give_back(MODEL, batch, Blame.SUSPECT)
    store.claim(MODEL, "b2", 1)
    record = DeadLetter("t0", MODEL, "paid", "died", "InferenceFailed", "", 2, 2, "b2", 0, 0.0)
    store.finish("b2", [Settled(1, "t0", 1000, "", b"{}", msgspec.json.encode(record))], last=True)
    assert DeadLetters(places_of(redis)).replay("t0", 30.0, 60.0)
    assert redis.lindex(KEYS.queue(MODEL, Tier.PAID), 0) == message
