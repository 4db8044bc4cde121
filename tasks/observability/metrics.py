"""Prometheus metrics that are correct with many processes: each adds its increments to one hash in Redis.

    process: prometheus_client objects ──increments, once a second──▶ bunch:metrics ──▶ GET /metrics of any frontend

Every metric is declared in this module and nowhere else: first what processes count, then what a frontend reads while
it is scraped. `docs/reference.md` has a row for each, and a test compares the two.

Sums live in Redis, so the restart of a process does not reset them and a scrape sees all processes. A killed process
loses at most its last second of counts; a flush whose reply is lost is sent again and counted once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis import Redis

from config.keys import Shard
from config.redis import Line, Script
from tasks.observability import slo
from tasks.script_args import COUNT, CountArgs, CountKeys

REGISTRY = CollectorRegistry(auto_describe=False)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
LOAD_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric that is not summed up: its samples are read at each scrape. `name` is without `_total`."""

    name: str
    text: str
    labels: tuple[str, ...]
    kind: type[GaugeMetricFamily | CounterMetricFamily]

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """A new family without samples; `add_metric(labels, value)` adds one."""
        return self.kind(self.name, self.text, labels=self.labels)


def _gauge(name: str, text: str, *labels: str) -> Reading:
    return Reading(f"bunch_{name}", text, labels, GaugeMetricFamily)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"bunch_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"bunch_{name}", text, labels, buckets=buckets, registry=REGISTRY)


REQUESTS = _counter(
    "requests_total", "Requests answered, by contract code or OK, and by API.", "model", "tier", "code", "door"
)
REQUEST_SECONDS = _histogram("request_seconds", "From the request's arrival to its answer.", SECONDS, "model", "tier")
QUEUE_SECONDS = _histogram("queue_seconds", "From admission to claim.", SECONDS, "model", "tier")
BATCH_SIZE = _histogram("batch_size", "Requests per batch.", SIZES, "model")
BATCH_FILL_SECONDS = _histogram(
    "batch_fill_seconds", "From the admission of a batch's oldest request to its claim.", SECONDS, "model"
)
BATCHES = _counter("batches_total", "Batches by what released them.", "model", "reason")
COMPUTE_SECONDS = _histogram("compute_seconds", "One batch inside the model.", SECONDS, "model")
BUSY_SECONDS = _counter(
    "executor_busy_seconds_total", "Time that an executor spends inside the model.", "model", "executor"
)
REPLACEMENTS = _counter("executor_replacements_total", "Executor processes that were replaced.", "model", "reason")
EXECUTOR_LOAD_SECONDS = _histogram(
    "executor_load_seconds", "From the start of an executor's process until its model is loaded.", LOAD_SECONDS, "model"
)
RETRIES = _counter("retries_total", "Requests given back for another attempt.", "model", "reason")
RESENT = _counter("resent_total", "Requests that a frontend sent again after a failover.")
REDELIVERED = _counter("redelivered_total", "Requests that ran again after an attempt was lost.", "model")
CANCELLED = _counter("cancelled_before_compute_total", "Requests cancelled before the model computed them.", "model")
EXPIRED = _counter("expired_total", "Requests whose deadline passed before the model computed them.", "model", "tier")
EXTRA_PASSES = _counter(
    "extra_passes_total", "Calls of a model beyond one per batch, to find the request that fails.", "model"
)
PADDING = _counter("padding_total", "Inputs that a model got only to make a batch one of its sizes.", "model")
DEAD_LETTERED = _counter(
    "dead_lettered_total", "Requests that failed for good and are kept as dead letters.", "model", "reason"
)
CALLBACKS = _counter("callbacks_total", "Attempts to push a result to its callback URL, by outcome.", "outcome")
LEDGER_ROWS = _counter("ledger_rows_total", "Requests written to the database's ledger.")
LEDGER_DROPPED = _counter("ledger_dropped_total", "Requests missing from the ledger, by reason.", "reason")
GPU_ERRORS = _counter("gpu_errors_total", "Errors that a GPU has reported, by kind.", "worker", "device", "kind")
WORKERS_LOST = _counter("workers_lost_total", "Workers that others have deregistered: they died, or were silent.")
SHED = _counter("shed_total", "Requests refused at admission.", "tier", "reason")
SLO_MISSED = _counter("slo_missed_total", "Requests that missed their tier's objective.", "tier")
COLLAPSED = _counter("collapsed_total", "Requests answered by an identical one that was already under way.", "model")
CACHE_HITS = _counter("cache_hits_total", "Requests answered from the cache of results.", "model")

QUEUE_DEPTH = _gauge("queue_depth", "Requests waiting in the queue.", "model", "tier")
QUEUE_OLDEST = _gauge("queue_oldest_seconds", "Age of the oldest waiting request.", "model", "tier")
SHARD_UP = _gauge("shard_up", "1 if a shard answers, else 0; only with several shards.", "shard")
WORKERS = _gauge("workers", "Workers by state.", "state")
EXECUTORS = _gauge("executors", "Executors of healthy workers.", "model", "state")
RESIDENT = _gauge("resident", "Models that are loaded: 1, or 0 for one that is loaded on demand.", "model", "worker")
DEAD_LETTERS = _gauge("dead_letters", "Dead letters that are kept.")
CALLBACKS_OWED = _gauge("callbacks_owed", "Results that are still to be pushed, unfinished requests among them.")
WORKERS_WANTED = _gauge("workers_wanted", "Workers that the autoscaler wants, while one runs.")
POOL_WORKERS_WANTED = _gauge(
    "pool_workers_wanted", "The same for each pool, or each group of workers with the same models.", "pool"
)
BREAKER_STATE = _gauge("breaker_state", "0 closed, 1 half-open, 2 open; the worst of all workers.", "model")
SAFE_BATCH_SIZE = _gauge(
    "safe_batch_size", "The largest batch that fitted into the memory of the smallest device.", "model"
)
GPU_UTILIZATION = _gauge("gpu_utilization", "Share of the time in which a GPU computes.", "worker", "device")
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory of a GPU that is in use.", "worker", "device")
GPU_MEMORY_TOTAL = _gauge("gpu_memory_total_bytes", "Memory of a GPU.", "worker", "device")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of a GPU.", "worker", "device")
SLO_LATENCY = _gauge("slo_latency_seconds", "The latency within which an answer meets the objective.", "tier")
SLO_TARGET = _gauge("slo_target", "The share of a tier's requests that must meet the objective.", "tier")
SLO_ATTAINMENT = _gauge("slo_attainment", "The share of a tier's requests that met the objective.", "tier", "window")
SLO_BURN_RATE = _gauge(
    "slo_burn_rate", "Rate at which the error budget is used; at 1 the objective is just met.", "tier", "window"
)
SLO_REQUESTS = Reading(
    "bunch_slo_requests", "Requests that count towards their tier's objective.", ("tier",), CounterMetricFamily
)
REDIS_MEMORY_USED = _gauge(
    "redis_memory_used_bytes", "Memory that Redis uses; with several servers, that of the fullest."
)
REDIS_MEMORY_MAX = _gauge("redis_memory_max_bytes", "Memory limit of that server; 0: no limit.")
BLOB_BYTES = _gauge(
    "blob_bytes",
    "Large payloads: live ones and those kept with dead letters in Redis; shared: in this machine's memory.",
    "state",
)
PROCESSES = _gauge("processes", "Processes by role, alive or silent for the last minute.", "role", "state")
PROCESS_CPU = Reading(
    "bunch_process_cpu_seconds", "User and system time of a process.", ("role", "process"), CounterMetricFamily
)
PROCESS_MEMORY = _gauge("process_resident_memory_bytes", "Resident memory of a process.", "role", "process")
PROCESS_FDS = _gauge("process_open_fds", "Open file descriptors of a process.", "role", "process")
BUILD_INFO = _gauge("build_info", "Processes of each version of Bunch, and of Python.", "version", "python")


def buckets(bounds: tuple[float, ...] = SECONDS) -> list[int]:
    """Counts for observations of one thread: `counted[bisect_left(bounds, amount)] += 1`; see `observe_all`."""
    return [0] * (len(bounds) + 1)


def observe_all(child: Histogram, counted: list[int], total: float) -> None:
    """Add observations in bulk: `observe` would take two locks and walk the bounds for each.

    `_sum` and `_buckets` are private to prometheus_client, in the version that constraints.txt pins.
    """
    child._sum.inc(total)  # noqa: SLF001 - as said
    for bucket, number in zip(child._buckets, counted, strict=True):  # noqa: SLF001 - as said
        if number:
            bucket.inc(number)


class Nothing:
    """Stands in for a metric's child where metrics are off."""

    def inc(self, amount: float = 1) -> None:
        """Do nothing."""

    def observe(self, amount: float) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Flush:
    number: int
    answered: float
    increments: tuple[tuple[str, float], ...]


class MetricsFlusher:
    """Adds this process's increments to the shared sums. Call `flush` once a second, and once at the end."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._line = Line(redis)
        self._keys = shard or Shard()
        self._name = secrets.token_hex(8)
        self._script = Script(COUNT.text)
        self._sent: dict[str, float] = {}
        self._fields: dict[tuple[str, ...], str] = {}
        self._number = 0
        # Sent but not confirmed: it must be repeated unchanged, under its number, before anything new is sent.
        self._unheard: _Flush | None = None

    def flush(self) -> None:
        """Send the increments. Raises RedisError; then they are sent with the next flush."""
        if self._unheard is not None:
            self._send(self._unheard)
        self._unheard = self._changes()
        if self._unheard is not None:
            self._send(self._unheard)

    def _changes(self) -> _Flush | None:
        current = {
            self._field(sample.name, sample.labels): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        changed = tuple(
            (field, value - self._sent.get(field, 0.0))
            for field, value in current.items()
            # Zeros too, once: an empty bucket that is missing distorts every quantile that Prometheus interpolates.
            if value != self._sent.get(field)
        )
        if not changed:
            return None
        self._sent = current
        self._number += 1
        answered = sum(delta for field, delta in changed if field.startswith('["bunch_requests_total"'))
        return _Flush(self._number, answered, changed)

    def _send(self, flush: _Flush) -> None:
        keys = CountKeys(
            sums=self._keys.metrics(),
            flush=self._keys.flush(f"metrics:{self._name}"),
            second=self._keys.rate(int(time.time())),
        )
        head = CountArgs(flush=flush.number, answered=repr(flush.answered or 0))
        # Each of them an `Increment`.
        pairs = [part for field, delta in flush.increments for part in (field, repr(delta))]
        self._line.script(self._script, keys, (*head, *pairs))
        self._unheard = None

    def _field(self, name: str, labels: dict[str, str]) -> str:
        key = (name, *labels.values())
        field = self._fields.get(key)
        if field is None:
            field = self._fields[key] = msgspec.json.encode([name, labels]).decode()
        return field


Samples = dict[str, list[tuple[dict[str, str], float]]]


class SharedMetrics:
    """A prometheus_client collector over the shared sums."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()

    def samples(self) -> Samples:
        """Every sum by the name of its sample. Raises RedisError."""
        stored = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.metrics()))
        values: Samples = {}
        for field, raw in stored.items():
            name, labels = msgspec.json.decode(field)
            values.setdefault(name, []).append((labels, float(raw)))
        return values

    def collect(self) -> Iterable[Metric]:
        values = self.samples()
        for family in REGISTRY.collect():
            yield _family(family, values)
        counted = SLO_REQUESTS.family()
        for tier, number in slo.counted(values.get("bunch_requests_total", ())).items():
            counted.add_metric((tier,), number)
        yield counted

    def requests_per_second(self, over_s: int = 5) -> float:
        now = int(time.time())
        counts = cast("list[bytes | None]", self._redis.mget([self._keys.rate(now - 1 - i) for i in range(over_s)]))
        return sum(float(count) for count in counts if count) / over_s


def _family(known: Metric, values: Samples) -> Metric:
    """The family as this process declares it, with the sums of all processes as its samples."""
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
