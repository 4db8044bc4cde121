"""The recent requests of a model and how each ended, from the batch log.

The arrival is when a request was queued, by Redis' clock, to the millisecond; the end is when its batch was settled.
Refused requests were in no batch: those are counted from the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batching.capacity.ab_verdict import Watched, watched
from tasks.observability.batch_log import UNSETTLED, BatchLog, BatchRecord
from tasks.observability.metrics import SharedMetrics
from tasks.observability.slo import CALLERS_OWN

# Codes of `requests_total` for requests that were never queued although their callers wanted that.
_AT_THE_DOOR = frozenset({"SERVICE_OVERLOADED"})


@dataclass(frozen=True, slots=True)
class BatchLogPeriod:
    """One settled request. Times are milliseconds of Redis time."""

    arrived_ms: int
    ended_ms: float
    rank: int
    code: str
    batch: str


def read(batch_log: BatchLog, model: str, since_ms: float = 0) -> list[BatchLogPeriod]:
    """The requests of `model` in the batch log that ended since then, by arrival. Raises RedisError."""
    found: dict[str, BatchLogPeriod] = {}
    for record in batch_log.records(since_ms):
        if record.model == model and record.id:
            found.update(_settled(record))
    return sorted(found.values(), key=lambda each: each.arrived_ms)


def _settled(record: BatchRecord) -> Iterable[tuple[str, BatchLogPeriod]]:
    ended_ms = record.claimed_ms + record.wait_ms + record.turn_ms + record.reply_ms
    for each in record.members:
        # A message of a plain Celery client has no time of arrival.
        if each.code != UNSETTLED and each.queue_ms >= 0:
            arrived_ms = record.claimed_ms - each.queue_ms
            yield each.id, BatchLogPeriod(arrived_ms, max(ended_ms, arrived_ms), each.rank, each.code, record.id)


def arrivals(past: Iterable[BatchLogPeriod], since_ms: float, until_ms: float) -> tuple[list[float], list[int]]:
    """The arrival times in seconds from the first one, and the ranks of their tiers."""
    came = [each for each in past if since_ms <= each.arrived_ms < until_ms]
    first = came[0].arrived_ms if came else 0
    return [(each.arrived_ms - first) / 1000 for each in came], [each.rank for each in came]


def window(past: Iterable[BatchLogPeriod], since_ms: float, until_ms: float, slo_s: float, refused: int) -> Watched:
    """The window of requests that *ended* in it, so that long waits are not left out; plus `refused`."""
    ended = [each for each in past if since_ms <= each.ended_ms < until_ms and each.code not in CALLERS_OWN]
    batches = len({each.batch for each in ended})
    return watched(
        [(each.ended_ms - each.arrived_ms) / 1000 for each in ended if each.code == "OK"],
        lost=refused + sum(each.code != "OK" for each in ended),
        mean_batch=len(ended) / batches if batches else 0.0,
        seconds=(until_ms - since_ms) / 1000,
        slo_s=slo_s,
    )


def refused_at_the_door(metrics: SharedMetrics, model: str) -> int:
    """The number of refusals since the metrics began. Raises RedisError."""
    requests = metrics.samples().get("bunch_requests_total", ())
    return round(sum(n for labels, n in requests if labels["model"] == model and labels["code"] in _AT_THE_DOOR))
