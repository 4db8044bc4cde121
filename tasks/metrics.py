"""Prometheus metrics that are right under many processes: each adds its increments to one hash in Redis.

    process: prometheus_client objects ──increments, once a second──▶ bunch:metrics ──▶ GET /metrics of any frontend

Sums live in Redis, so no process's recycling resets them and no scrape sees one process's share only. A process that is
killed loses at most its last second of counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from redis import Redis

from config.keys import Shard

REGISTRY = CollectorRegistry(auto_describe=False)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"bunch_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"bunch_{name}", text, labels, buckets=buckets, registry=REGISTRY)


REQUESTS = _counter("requests_total", "Requests answered, by contract code or OK.", "model", "tier", "code")
REQUEST_SECONDS = _histogram("request_seconds", "From the request's arrival to its answer.", _SECONDS, "model", "tier")
QUEUE_SECONDS = _histogram("queue_seconds", "From admission to claim.", _SECONDS, "model", "tier")
BATCH_SIZE = _histogram("batch_size", "Requests per batch.", _SIZES, "model")
BATCH_FILL_SECONDS = _histogram(
    "batch_fill_seconds", "From the admission of a batch's oldest request to its claim.", _SECONDS, "model"
)
BATCHES = _counter("batches_total", "Batches by what released them.", "model", "reason")
COMPUTE_SECONDS = _histogram("compute_seconds", "One batch inside the model.", _SECONDS, "model")
BUSY_SECONDS = _counter("executor_busy_seconds_total", "Time inside the model.", "model", "executor")
RETRIES = _counter("retries_total", "Requests given back for another attempt.", "model", "reason")
REDELIVERED = _counter("redelivered_total", "Requests that ran again after an attempt was lost.", "model")
CANCELLED = _counter("cancelled_before_compute_total", "Requests taken back before the model saw them.", "model")
EXPIRED = _counter("expired_total", "Requests whose time passed before the model saw them.", "model", "tier")
EXTRA_PASSES = _counter("extra_passes_total", "Calls of a model beyond one per batch, to find a culprit.", "model")
DEAD_LETTERED = _counter("dead_lettered_total", "Requests given up and kept as dead letters.", "model", "reason")
LEDGER_ROWS = _counter("ledger_rows_total", "Requests written to the database's ledger.")
LEDGER_DROPPED = _counter("ledger_dropped_total", "Requests that the ledger lacks, by why.", "reason")
SHED = _counter("shed_total", "Requests refused at the door.", "tier", "reason")


class MetricsFlusher:
    """Adds this process's increments to the shared sums. Call `flush` once a second, and once at the end."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._sent: dict[str, float] = {}

    def flush(self) -> None:
        """Raises RedisError; what was not sent goes with the next flush."""
        current = {
            field: sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
            for field in (_field(sample.name, sample.labels),)
        }
        changed = {
            field: value - self._sent.get(field, 0.0)
            for field, value in current.items()
            # Zeros once, too: an empty bucket that is not there bends every quantile that Prometheus interpolates.
            if value != self._sent.get(field)
        }
        if not changed:
            return
        pipeline = self._redis.pipeline(transaction=True)
        for field, delta in changed.items():
            pipeline.hincrbyfloat(self._keys.metrics(), field, delta)
        answered = sum(delta for field, delta in changed.items() if field.startswith('["bunch_requests_total"'))
        if answered:
            rate = self._keys.rate(int(time.time()))
            pipeline.incrbyfloat(rate, answered)
            pipeline.expire(rate, 60)
        pipeline.execute()
        self._sent = current


def _field(name: str, labels: dict[str, str]) -> str:
    return msgspec.json.encode([name, labels]).decode()


class SharedMetrics:
    """A prometheus_client collector over the shared sums."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()

    def collect(self) -> Iterable[Metric]:
        stored = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.metrics()))
        values: dict[str, list[tuple[dict[str, str], float]]] = {}
        for field, raw in stored.items():
            name, labels = msgspec.json.decode(field)
            values.setdefault(name, []).append((labels, float(raw)))
        for family in REGISTRY.collect():
            yield _family(family, values)

    def requests_per_second(self, over_s: int = 5) -> float:
        now = int(time.time())
        counts = cast("list[bytes | None]", self._redis.mget([self._keys.rate(now - 1 - i) for i in range(over_s)]))
        return sum(float(count) for count in counts if count) / over_s


def _family(known: Metric, values: dict[str, list[tuple[dict[str, str], float]]]) -> Metric:
    """The family as this process knows it, with the sums of all processes in place of its own."""
    if known.type == "counter":
        counter = CounterMetricFamily(known.name, known.documentation)
        for labels, value in values.get(f"{known.name}_total", ()):
            counter.add_sample(f"{known.name}_total", labels, value)
        return counter
    histogram: Any = HistogramMetricFamily(known.name, known.documentation)
    for suffix in ("_bucket", "_count", "_sum"):
        for labels, value in sorted(values.get(known.name + suffix, ()), key=_bucket_order):
            histogram.add_sample(known.name + suffix, labels, value)
    return cast("Metric", histogram)


def _bucket_order(sample: tuple[dict[str, str], float]) -> tuple[list[tuple[str, str]], float]:
    labels, _ = sample
    rest = sorted((key, value) for key, value in labels.items() if key != "le")
    return rest, float(labels.get("le", "0").replace("+Inf", "inf"))
