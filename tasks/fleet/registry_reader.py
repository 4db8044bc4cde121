"""Reads from Redis what runs: the registry of workers.

Each worker writes a report under `bunch:worker:<id>` and beats in `bunch:workers` every second; a worker whose last
beat is older than the lease TTL counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard


class OnDemandRow(msgspec.Struct, frozen=True):
    """A model that is loaded on demand, in one worker. `residency` is its `batching.policy.residency.Stage`.

    `load_ms` is how long loading takes, None before the first load. `ready_in_ms` is the time until a request of now
    would be answered, None where that is not known. `retry_in_ms` is the rest of the pause after a load that failed,
    None unless one has.
    """

    residency: str
    loads: int = 0
    load_ms: int | None = None
    ready_in_ms: int | None = None
    retry_in_ms: int | None = None


class ExecutorRow(msgspec.Struct, frozen=True):
    """One executor, as its worker reports it. `busy` is the fraction of the last second spent in the model. `error`
    says why it did not start or, while it is starting, why the process before it was replaced.

    `safe_size` is the largest batch that fitted into its device's memory, None while no limit is known. Learnt from the
    last dozen batches, None before: `one_ms` is how long a batch of one takes, `rate_rps` the rate with full batches.
    `device` is the device that its model was given, and which GPU that is; `in_flight` how many requests it holds.
    `spare_pid` is the process that takes its place when it ends, None while none is loaded.
    `pressed_size` is the largest batch while its device's memory is nearly full, None while it is not.
    `on_demand` is None for a model that is always loaded.
    """

    model: str
    executor: str
    state: str
    error: str | None = None
    busy: float = 0.0
    batches: int = 0
    restarts: int = 0
    pid: int | None = None
    breaker: str = "closed"
    safe_size: int | None = None
    one_ms: float | None = None
    rate_rps: float | None = None
    device: str = ""
    in_flight: int = 0
    spare_pid: int | None = None
    pressed_size: int | None = None
    on_demand: OnDemandRow | None = None

    @property
    def is_served(self) -> bool:
        """Return whether it takes batches, or will when requests wait for its model."""
        return self.state == "ready" or (self.on_demand is not None and self.state in {"unloaded", "starting"})


class GpuRow(msgspec.Struct, frozen=True):
    """One GPU that a worker uses, by its UUID; None for what it does not tell."""

    device: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None


class QueueRow(msgspec.Struct, frozen=True):
    """One tier queue. `oldest_ms` is the age of the oldest waiting request, 0 if there is none or it is not known."""

    model: str
    tier: str
    depth: int
    oldest_ms: int
    arrival_rps: float = 0.0


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker. `age_ms` is the time since its last heartbeat, filled in by the reader; `node` is its name in Celery.

    `degraded`: one of its executors takes no batches, its model's breaker is not closed, or a device is not healthy.
    `seal` identifies the key with which it checks frontends' messages (`config.secrets.message_keys.fingerprint`).
    `queues` are those in its own memory, in collocated mode.
    `pool` is empty for a worker of none. `health` is that of its devices (`healthy`, `degraded`, `offline`), for the
    `reasons`.
    """

    id: str
    hostname: str
    pid: int
    started_at: float
    models: tuple[ExecutorRow, ...] = ()
    state: str = "running"
    age_ms: int = 0
    node: str = ""
    degraded: bool = False
    seal: str = ""
    queues: tuple[QueueRow, ...] = ()
    pool: str = ""
    health: str = "healthy"
    reasons: tuple[str, ...] = ()
    gpus: tuple[GpuRow, ...] = ()

    @property
    def name(self) -> str:
        """The name shown to people: the same as in Celery and Flower."""
        return self.node or self.id


class Fleet:
    """Reads the registry. Each call takes a few round trips: meant for pages and commands, not for requests."""

    def __init__(self, redis: Redis, lease_ttl_s: float = 5.0) -> None:
        self._redis = redis
        self._keys = Shard()
        self._ttl_ms = lease_ttl_s * 1000

    def workers(self) -> list[WorkerRow]:
        """Every worker that has a heartbeat, also silent ones; `age_ms` tells.

        A beat from the future means that Redis' clock has gone back: it says as little as one from long ago.
        """
        beats = cast("list[tuple[bytes, float]]", self._redis.zrange(self._keys.workers(), 0, -1, withscores=True))
        if not beats:
            return []
        seconds, micros = self._redis.time()
        now_ms = seconds * 1000 + micros // 1000
        stored = cast("list[bytes | None]", self._redis.mget([self._keys.worker(name.decode()) for name, _ in beats]))
        rows = []
        for raw, (_, beat_ms) in zip(stored, beats, strict=True):
            if raw:
                row = msgspec.json.decode(raw, type=WorkerRow)
                rows.append(msgspec.structs.replace(row, age_ms=abs(int(now_ms - beat_ms))))
        return rows

    def alive_of(self, workers: Iterable[WorkerRow]) -> list[WorkerRow]:
        """The workers that have beaten within the lease TTL, whatever their state."""
        return [row for row in workers if self.is_fresh(row.age_ms)]

    def is_fresh(self, age_ms: float) -> bool:
        """Return whether a heartbeat of that age is within the lease TTL; one of the future says nothing."""
        return abs(age_ms) <= self._ttl_ms

    def healthy(self) -> list[WorkerRow]:
        return self.healthy_of(self.workers())

    def healthy_of(self, workers: Iterable[WorkerRow]) -> list[WorkerRow]:
        """The workers that have beaten within the lease TTL and are not draining or stopping."""
        return [row for row in self.alive_of(workers) if row.state == "running"]


def ready_models(workers: Iterable[WorkerRow]) -> set[str]:
    """The models with at least one executor that takes batches, or will when requests wait."""
    return {each.model for worker in workers for each in worker.models if each.is_served}


# The worst last, as `bunch_breaker_state` numbers them.
BREAKER_STATES = ("closed", "half-open", "open")


def breakers(workers: Iterable[WorkerRow], models: Iterable[str]) -> dict[str, str]:
    """The breaker state of each model: the worst of its workers', since that one does not take all requests."""
    worst = dict.fromkeys(models, BREAKER_STATES[0])
    for each in (executor for worker in workers for executor in worker.models):
        if each.model in worst:
            worst[each.model] = max(worst[each.model], each.breaker, key=BREAKER_STATES.index)
    return worst


def safe_sizes(workers: Iterable[WorkerRow]) -> dict[str, int]:
    """The largest safe batch of each model with a device that has run out of memory; the smallest device counts."""
    found: dict[str, int] = {}
    for each in (executor for worker in workers for executor in worker.models):
        if each.safe_size is not None:
            found[each.model] = min(each.safe_size, found.get(each.model, each.safe_size))
    return found


def utilisation(workers: Iterable[WorkerRow]) -> float:
    """Mean busy fraction over the executors that are ready."""
    busy = [each.busy for worker in workers for each in worker.models if each.state == "ready"]
    return sum(busy) / len(busy) if busy else 0.0


def gpu_utilisation(workers: Iterable[WorkerRow]) -> float | None:
    """Mean utilisation of the GPUs themselves, each counted once; None where none tells."""
    seen = {each.device: each.utilization for worker in workers for each in worker.gpus}
    known = [each for each in seen.values() if each is not None]
    return sum(known) / len(known) if known else None
