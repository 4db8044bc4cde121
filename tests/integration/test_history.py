"""The last hour and the slow requests, as several frontends keep them in one Redis."""

from __future__ import annotations

import pytest
from redis import Redis

from config.keys import Shard
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet
from tasks.observability import history
from tasks.observability.history import History, Point
from tasks.observability.metrics import SharedMetrics
from tasks.observability.slow_log import KEPT, SlowLog, SlowRequest, with_metadata
from tests.shards import places_of

KEYS = Shard()


def history_of(redis: Redis) -> History:
    fleet, places = Fleet(redis), places_of(redis)
    return History(places, fleet, QueueReader(places, fleet), SharedMetrics(redis), ["m"])


@pytest.fixture
def kept(redis: Redis) -> History:
    return history_of(redis)


def test_of_several_frontends_one_takes_each_point(redis: Redis, kept: History) -> None:
    others = [history_of(redis) for _ in range(3)]
    # A step may end in between.
    taken = sum(each.take_if_due() for each in [kept, *others, kept])
    assert taken in {1, 2}
    assert 1 <= len(kept.points()) <= 2
    assert kept.points()[0].queues == {"m": {"enterprise": (0, 0), "paid": (0, 0), "free": (0, 0)}}


def test_an_hour_is_kept_and_no_more(redis: Redis, kept: History) -> None:
    redis.rpush(KEYS.history(), *(history._encode(Point(at=n)) for n in range(history.KEPT + 50)))
    redis.delete(*(redis.keys("bunch:history:*") or ["none"]))
    assert kept.take_if_due()
    assert len(kept.points()) == history.KEPT
    assert redis.ttl(KEYS.history()) > 0


def test_a_point_of_so_long_ago(redis: Redis, kept: History) -> None:
    assert kept.ago(60) is None
    redis.rpush(KEYS.history(), *(history._encode(Point(at=n * history.STEP_S)) for n in range(100)))
    ago = kept.ago(60)
    assert ago is not None
    assert 99 * history.STEP_S - ago.at == pytest.approx(60, abs=history.STEP_S)
    oldest = kept.ago(3600)
    assert oldest is not None
    assert oldest.at == 0


def slow(number: int, total_ms: float = 1500.0) -> SlowRequest:
    return SlowRequest(
        at=float(number), request_id=f"r{number}", task_id="t", model="m", tier="paid", code="OK", total_ms=total_ms
    )


def test_the_slowest_of_a_second_are_kept_the_newest_first(redis: Redis) -> None:
    log = SlowLog(redis)
    for n in range(1000):
        log.note(slow(n, total_ms=float(n)))
    log.flush()
    log.flush()
    assert [each.request_id for each in log.newest()] == ["r999", "r998", "r997", "r996", "r995"]


def test_slow_requests_are_bounded_over_time(redis: Redis) -> None:
    log = SlowLog(redis)
    for n in range(KEPT + 20):
        log.note(slow(n))
        log.flush()
    assert len(log.newest()) == KEPT
    assert log.newest(1)[0].request_id == f"r{KEPT + 19}"


def test_where_the_time_went_comes_from_the_answer() -> None:
    known = with_metadata(
        slow(1), b'{"queue_ms":7,"compute_ms":2.5,"batch_size":3,"batch_id":"b","attempt":2,"more":1}'
    )
    assert (known.queue_ms, known.compute_ms, known.batch_size, known.batch_id, known.attempt) == (7, 2.5, 3, "b", 2)
    assert with_metadata(slow(1), b"") == slow(1)
