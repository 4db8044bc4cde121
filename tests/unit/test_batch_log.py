"""The worker's batch log: what is written down of a batch, and of requests that it did not settle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Expired, Failed, Ok, Rejected, Request
from config.tiers import Tier
from tasks.observability.batch_log import UNSETTLED, BatchRecord
from tasks.observers.batch_log import BatchLogObserver


class Store:
    """`tasks.observability.batch_log.BatchLog` that keeps what it is given, or is away."""

    def __init__(self) -> None:
        self.written: list[BatchRecord] = []
        self.away = False

    def write(self, records: Iterable[BatchRecord]) -> None:
        if self.away:
            raise RedisConnectionError("away")
        self.written += records


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> list[float]:
    return [10.0]


@pytest.fixture
def batch_log(store: Store, clock: list[float]) -> BatchLogObserver:
    written: Any = store
    return BatchLogObserver(written, lambda: "w", lambda: clock[0])


def request(name: str, position: int = 1, **fields: Any) -> Request:
    return Request(name, Tier.PAID, position, b"1", b"{}", enqueued_ms=900, sent_ms=890, **fields)


def info(size: int, **fields: Any) -> BatchInfo:
    return BatchInfo("b1", "m", "1", size, Reason.FULL, 1_000, executor="m/0", **fields)


def test_a_settled_batch_with_its_times(batch_log: BatchLogObserver, store: Store, clock: list[float]) -> None:
    one, two = request("one"), request("two", 2)
    batch_log.claimed([one, two], info(2))
    clock[0] += 0.5
    batch_log.finished([(one, Ok(b"1")), (two, Rejected("no"))], info(2, compute_s=0.2, wait_s=0.1, turn_s=0.3))
    batch_log.flush()
    (record,) = store.written
    assert (record.id, record.worker, record.executor, record.reason) == ("b1", "w", "m/0", "full")
    times = (record.wait_ms, record.turn_ms, record.compute_ms, record.reply_ms)
    assert times == pytest.approx((100, 300, 200, 100))
    assert [(each.id, each.code, each.error, each.admission_ms, each.queue_ms) for each in record.members] == [
        ("one", "OK", "", 10, 100),
        ("two", "INPUT_REJECTED", "InputRejected: no", 10, 100),
    ]


def test_one_record_for_what_was_settled_early_and_late(batch_log: BatchLogObserver, store: Store) -> None:
    late, good = request("late"), request("good", 2)
    batch_log.finished([(late, Expired())], info(1))
    batch_log.claimed([good], info(1))
    batch_log.finished([(good, Ok(b"1"))], info(1, turn_s=0.1))
    batch_log.flush()
    (record,) = store.written
    assert {each.id: each.code for each in record.members} == {"late": "DEADLINE_EXCEEDED", "good": "OK"}


def test_a_batch_that_was_given_back_says_why(batch_log: BatchLogObserver, store: Store) -> None:
    one = request("one")
    batch_log.claimed([one], info(1))
    batch_log.returned([one], info(1), "the process was killed by SIGSEGV")
    batch_log.flush()
    (record,) = store.written
    assert record.why == "the process was killed by SIGSEGV"
    assert record.members[0].code == UNSETTLED


def test_a_retry_among_others(batch_log: BatchLogObserver, store: Store) -> None:
    one, two = request("one"), request("two", 2)
    batch_log.claimed([one, two], info(2))
    batch_log.retried([one], info(2), "a passing fault")
    batch_log.finished([(two, Failed("broke"))], info(2, turn_s=0.1))
    batch_log.flush()
    (record,) = store.written
    assert {each.id: each.code for each in record.members} == {"one": UNSETTLED, "two": "INFERENCE_FAILED"}
    assert record.why == "a passing fault"


def test_while_redis_is_away_the_newest_are_kept_and_no_more(batch_log: BatchLogObserver, store: Store) -> None:
    store.away = True
    for n in range(3_000):
        batch_log.finished([(request(f"r{n}"), Expired())], info(0))
    batch_log.flush()
    store.away = False
    batch_log.flush()
    assert len(store.written) == 2_000
    assert store.written[-1].members[0].id == "r2999"


def test_who_shares_an_outcome_was_in_no_batch_and_is_told_of_all_the_same(
    batch_log: BatchLogObserver, store: Store
) -> None:
    asked, joined = request("asked"), request("joined", -1, request_id="case-1")
    batch_log.claimed([asked], info(1))
    batch_log.finished([(asked, Ok(b"1")), (joined, Ok(b"1"))], info(1, turn_s=0.1))
    batch_log.flush()
    (record,) = store.written
    assert [each.id for each in record.members] == ["asked"]
    assert [(each.id, each.request_id, each.code) for each in record.joined] == [("joined", "case-1", "OK")]
    assert record.of("case-1") == record.joined[0]


def test_nothing_of_a_batch_is_left_behind(batch_log: BatchLogObserver) -> None:
    batch_log.claimed([request("one")], info(1))
    batch_log.finished((), info(1))
    assert batch_log._open == {}
