"""`explain` over what lies in Redis: requests tried before, those that wait, those nobody knows; and what it costs."""

from __future__ import annotations

import pytest
from redis import Redis

from batching.claim.registry import WorkerRegistry
from batching.claim.store import Blame, RedisBatchStore
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Failed, Ok
from config.keys import Shard
from config.tiers import Tier
from tasks.observability.batch_log import BatchLog
from tasks.observability.explain import explain
from tasks.observers.batch_log import BatchLogObserver
from tasks.protocol.results import CeleryCodec
from tests.fakes.messages import our_message
from tests.shards import places_of

MODEL = "m"
CODEC = CeleryCodec(60_000)


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    return RedisBatchStore(redis, "worker-1")


@pytest.fixture
def batch_log(redis: Redis) -> BatchLogObserver:
    return BatchLogObserver(BatchLog(redis), lambda: "worker-1")


def put(redis: Redis, *task_ids: str, tier: Tier = Tier.PAID) -> None:
    for each in task_ids:
        redis.lpush(Shard().queue(MODEL, tier), our_message(each, b"1", tier=tier))


def run(store: RedisBatchStore, batch_log: BatchLogObserver, batch_id: str, *, lost: str = "", fails: str = "") -> None:
    """One batch as the claim loop does it; `lost` is why its executor died."""
    claim = store.claim(MODEL, batch_id, 8)
    requests = [CODEC.decode(entry) for entry in claim.entries]
    info = BatchInfo(batch_id, MODEL, "1", len(requests), Reason.IDLE, claim.view.now_ms, 0.02, 1, "m/0", 0.001, 0.025)
    batch_log.claimed(requests, info)
    if lost:
        store.give_back(MODEL, batch_id, Blame.SUSPECT)
        batch_log.returned(requests, info, lost)
    else:
        outcomes = [(each, Failed("broke") if each.id == fails else Ok(b"1")) for each in requests]
        store.finish(batch_id, [CODEC.encode(*pair, info) for pair in outcomes], last=True)
        batch_log.finished(outcomes, info)
    batch_log.flush()


def test_the_attempts_that_came_before(redis: Redis, store: RedisBatchStore, batch_log: BatchLogObserver) -> None:
    put(redis, "a", "b")
    run(store, batch_log, "b1", lost="the process was killed by SIGSEGV")
    run(store, batch_log, "b2", fails="a")
    about = explain(places_of(redis), [MODEL], "a")
    assert about is not None
    assert (about["status"], about["attempt"], about["error"]["message"]) == ("failed", 2, "broke")
    (earlier,) = about["attempts"]
    assert (earlier["attempt"], earlier["batch_id"], earlier["size"]) == (1, "b1", 2)
    assert earlier["ended"] == "the process was killed by SIGSEGV"
    # A suspect runs by itself or among suspects.
    assert about["batch"]["id"] == "b2"


def test_a_worker_that_died_has_left_a_record_all_the_same(
    redis: Redis, store: RedisBatchStore, batch_log: BatchLogObserver
) -> None:
    put(redis, "a")
    store.claim(MODEL, "b1", 8)
    other = WorkerRegistry(redis, 5.0, on_lost=BatchLog(redis).lost)
    assert other.reclaim("worker-1", silent_ms=0) == 1
    waiting = explain(places_of(redis), [MODEL], "a")
    assert waiting is not None
    assert (waiting["status"], waiting["attempt"]) == ("queued", 2)
    run(store, batch_log, "b2")
    about = explain(places_of(redis), [MODEL], "a")
    assert about is not None
    assert [each["ended"] for each in about["attempts"]] == ["its worker died"]
    assert about["status"] == "completed"


def test_what_waits_aside_and_what_nobody_knows(redis: Redis, store: RedisBatchStore) -> None:
    put(redis, "a", tier=Tier.FREE)
    store.claim(MODEL, "b1", 8)
    store.put_aside(MODEL, "b1", [(1, 60_000)], last=True)
    about = explain(places_of(redis), [MODEL], "a")
    assert about is not None
    assert (about["status"], about["tier"], about["attempt"]) == ("queued", "free", 2)
    assert about["where"].startswith("put aside until")
    assert explain(places_of(redis), [MODEL], "nobody") is None


def test_admission_is_from_the_senders_clock_and_never_negative(
    redis: Redis, store: RedisBatchStore, batch_log: BatchLogObserver
) -> None:
    put(redis, "a")
    run(store, batch_log, "b1")
    about = explain(places_of(redis), [MODEL], "a")
    assert about is not None
    stages = {each["stage"]: each["ms"] for each in about["stages"]}
    assert 0 <= stages["admission"] < 1_000
    assert (stages["batch_wait"], stages["compute"], stages["transfer"]) == (1.0, 20.0, 5.0)
