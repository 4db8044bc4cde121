"""Redis refuses an outcome for what it is, not for a passing state: neighbours are answered, nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from batching.claim.settler import Settler
from batching.claim.store import RedisBatchStore
from batching.policy import Reason, RetryPolicy
from batching.ports import BatchInfo, NoFollowUp, NullObserver
from batching.request import Failed, Ok, Request
from cli.supervisor.ports import free_port
from config.keys import Shard
from config.redis import Line, Script, connect, will_repeat
from config.tiers import Tier
from tasks.protocol.results import CeleryCodec
from tests.integration.queueing import MODEL, put
from tests.valkey import PrivateValkey

KEYS = Shard()
INFO = BatchInfo("b1", MODEL, "1", 3, Reason.IDLE, 1_000)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batching.claim.settler._FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr("batching.claim.settler._MAX_BACKOFF_S", 0.002)


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    return RedisBatchStore(redis, "w1")


@pytest.fixture
def settler(store: RedisBatchStore) -> Settler:
    codec = CeleryCodec(60_000)
    return Settler("m/0", MODEL, store, codec, NullObserver(), RetryPolicy(3), NoFollowUp())


def claimed(redis: Redis, store: RedisBatchStore) -> list[Request]:
    for task_id in ("good", "bad", "better"):
        put(redis, task_id)
    entries = store.claim(MODEL, "b1", 3).entries
    return [
        Request(task_id, Tier.PAID, entry.position, b"1", b"{}", result_ttl_ms=60_000)
        for task_id, entry in zip(("good", "bad", "better"), entries, strict=True)
    ]


def result(redis: Redis, task_id: str) -> dict[str, Any]:
    raw = redis.get(KEYS.result(task_id))
    assert isinstance(raw, bytes)
    found: dict[str, Any] = json.loads(raw)
    return found


def test_a_dead_letter_that_cannot_be_kept_costs_nobody_an_answer(
    redis: Redis, store: RedisBatchStore, settler: Settler
) -> None:
    good, bad, better = claimed(redis, store)
    redis.set(KEYS.dead(), "somebody's mistake")

    settler.settle([(good, Ok(b"1")), (bad, Failed("its own reason")), (better, Ok(b"2"))], INFO, last=True)

    assert [result(redis, each)["status"] for each in ("good", "bad", "better")] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert "its own reason" in json.dumps(result(redis, "bad"))
    assert redis.exists(KEYS.lease("b1"), KEYS.leases("w1")) == 0


def test_what_cannot_be_stored_at_all_is_lost_alone(
    redis: Redis, store: RedisBatchStore, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, better = claimed(redis, store)
    finish = store.finish

    def refuse_one(batch_id: str, outcomes: Any, *, last: bool) -> bool:
        if any(each.task_id == "bad" and b"SUCCESS" in each.result for each in outcomes):
            redis.lpush(KEYS.result("good"), "no list")
        return finish(batch_id, outcomes, last=last)

    monkeypatch.setattr(store, "finish", refuse_one)
    settler.settle([(good, Ok(b"1")), (bad, Ok(b"2")), (better, Ok(b"3"))], INFO, last=True)

    assert [result(redis, each)["status"] for each in ("good", "bad", "better")] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert json.loads(redis.get(KEYS.result("bad")) or b"")["bunch"]["code"] == "INTERNAL"
    assert redis.exists(KEYS.lease("b1"), KEYS.leases("w1")) == 0


WRITE = Script("return redis.call('SET', KEYS[1], '1')")


@pytest.fixture
def own() -> Iterator[Redis]:
    server = PrivateValkey()
    server.start()
    with server.client() as client:
        yield client
    server.stop()


@pytest.mark.parametrize(
    ("spoil", "repeats"),
    [
        (lambda redis: redis.config_set("maxmemory", 1), False),
        (lambda redis: redis.replicaof("127.0.0.1", str(free_port())), False),
        (lambda redis: redis.config_set("min-replicas-to-write", 3), False),
        (lambda redis: redis.acl_setuser("default", enabled=True, commands=["-set"]), True),
    ],
    ids=["full", "a replica", "alone", "forbidden"],
)
def test_a_state_that_passes_is_told_from_a_refusal(
    own: Redis, spoil: Callable[[Redis], object], repeats: bool
) -> None:
    line = Line(own)
    line.script(WRITE, ("key",), ())
    spoil(own)
    with pytest.raises(RedisError) as raised:
        line.script(WRITE, ("key",), ())
    assert will_repeat(raised.value) is repeats
    line.close()


def test_a_key_of_another_type_is_a_refusal(own: Redis) -> None:
    own.set("key", "a string")
    with pytest.raises(RedisError) as raised:
        Line(own).script(Script("return redis.call('ZADD', KEYS[1], 1, 'x')"), ("key",), ())
    assert will_repeat(raised.value)


def test_an_outage_is_none() -> None:
    assert not will_repeat(RedisConnectionError("refused"))
    assert not will_repeat(ResponseError("BUSY Redis is busy running a script. You can only call SCRIPT KILL"))


@pytest.fixture
def small_redis() -> Iterator[Redis]:
    """A server that closes the connection on whoever sends it more than a megabyte at once."""
    server = PrivateValkey("--proto-max-bulk-len", "1mb")
    server.start()
    try:
        with connect(server.url) as client:
            yield client
    finally:
        server.stop()


def test_an_outcome_that_is_too_large_for_redis_fails_alone(small_redis: Redis) -> None:
    store = RedisBatchStore(small_redis, "w1")
    settler = Settler("m/0", MODEL, store, CeleryCodec(60_000), NullObserver(), RetryPolicy(3), NoFollowUp())
    good, bad, better = claimed(small_redis, store)
    huge = b'"%b"' % (b"x" * 40_000_000)

    settler.settle([(good, Ok(b"1")), (bad, Ok(huge)), (better, Ok(b"2"))], INFO, last=True)

    statuses = [result(small_redis, each)["status"] for each in ("good", "bad", "better")]
    assert statuses == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert "could not be stored" in json.dumps(result(small_redis, "bad"))
    assert small_redis.exists(KEYS.lease("b1"), KEYS.leases("w1")) == 0


def test_an_outage_is_waited_for_however_large_the_outcome(
    redis: Redis, store: RedisBatchStore, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is answered either, so it is not for its size."""
    good, bad, better = claimed(redis, store)
    finish, look, tries = store.finish, store.look, iter(range(100))

    def away(*args: Any, **options: Any) -> Any:
        if next(tries) < 30:
            raise RedisConnectionError("away")
        monkeypatch.setattr(store, "look", look)
        return finish(*args, **options)

    def nobody(*args: Any) -> Any:
        raise RedisConnectionError("away")

    monkeypatch.setattr(store, "finish", away)
    monkeypatch.setattr(store, "look", nobody)
    huge = b'"%b"' % (b"x" * 3_000_000)
    settler.settle([(good, Ok(b"1")), (bad, Ok(huge)), (better, Ok(b"2"))], INFO, last=True)
    assert [result(redis, each)["status"] for each in ("good", "bad", "better")] == ["SUCCESS"] * 3


def test_many_bytes_are_stored_in_several_calls_and_the_lease_lasts_until_the_last(
    redis: Redis, store: RedisBatchStore, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, better = claimed(redis, store)
    finish, calls = store.finish, []

    def watched(batch_id: str, outcomes: Any, *, last: bool) -> Any:
        assert redis.exists(KEYS.lease("b1")) == 1
        calls.append(([each.task_id for each in outcomes], last))
        return finish(batch_id, outcomes, last=last)

    monkeypatch.setattr(store, "finish", watched)
    monkeypatch.setattr("batching.claim.slices.SLICE_BYTES", 100_000)
    large = b'"%b"' % (b"x" * 60_000)
    settler.settle([(good, Ok(large)), (bad, Ok(large)), (better, Ok(b"2"))], INFO, last=True)

    assert calls == [(["good"], False), (["bad", "better"], True)]
    assert [result(redis, each)["status"] for each in ("good", "bad", "better")] == ["SUCCESS"] * 3
    assert redis.exists(KEYS.lease("b1"), KEYS.leases("w1")) == 0
