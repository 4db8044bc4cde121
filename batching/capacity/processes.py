"""The process that limits a fleet: a frontend, Redis' one thread, a worker, or an executor.

    callers ──▶ N frontends ──▶ Redis ──▶ N workers ──▶ N executors
                  1/D_f each     1/D_r      1/D_w each    64 / (time of a batch) each

Operational analysis (Denning and Buzen, 1978): a process that spends D seconds on a request answers at most 1/D per
second, and at a rate X it is busy for X·D of the time (the utilisation law). The smallest bound is that of the fleet.
Each process has one thread that computes: Redis by design, the others by Python's global lock.

The executors' bound with a model comes from the simulator, since it includes the pauses between two batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from batching.policy import Policy
from batching.simulator import Callers, Overheads, Scenario, Service, simulate

FRONTEND, REDIS, WORKER, EXECUTOR = "frontend", "Redis", "worker", "executor"
SIZES = (1, 2, 4, 8)
# Enough callers of each frontend to fill batches while others are answered; the unit costs were measured with as many.
CALLERS = 256
# Batches of a full executor in virtual time, until the rate does not change any more.
_BATCHES = 60


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Processor time of a request, in microseconds, by role, with full batches."""

    frontend_us: float
    redis_us: float
    worker_us: float
    executor_us: float

    @property
    def total_us(self) -> float:
        return self.frontend_us + self.redis_us + self.worker_us + self.executor_us


# Measured by `python -m tests.benchmarks.scaling`, by bytes of an input and of its output; see docs/benchmarks.md.
MEASURED: Final = {60: UnitCosts(29.2, 22.8, 22.7, 4.4), 2048: UnitCosts(43.4, 47.1, 31.9, 10.6)}


def costs_for(payload_bytes: int) -> UnitCosts:
    """The costs with inputs and outputs of that size: by the line through both measurements, and never below them."""
    small, large = sorted(MEASURED)
    share = max(0.0, (payload_bytes - small) / (large - small))

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    return UnitCosts(*map(between, astuple(MEASURED[small]), astuple(MEASURED[large])))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Numbers of processes; Redis is one, whatever the others are. Each worker has one executor of the model."""

    frontends: int
    workers: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The rate of a fleet: at most `rps`, because of `limit`. `busy` is the utilisation of a process of each role.

    `cores` is the processor time of all processes at that rate, in cores; a model that computes elsewhere adds none.
    """

    rps: float
    limit: str
    busy: dict[str, float]
    cores: float


def bound(fleet: Fleet, costs: UnitCosts, executors_rps: float | None = None) -> Bound:
    """The bound of a fleet.

    Args:
        executors_rps: requests/s of all executors with their model; without it the model takes no time.
    """
    alone = {
        FRONTEND: fleet.frontends * 1e6 / costs.frontend_us,
        REDIS: 1e6 / costs.redis_us,
        WORKER: fleet.workers * 1e6 / costs.worker_us,
        EXECUTOR: fleet.workers * 1e6 / costs.executor_us if executors_rps is None else executors_rps,
    }
    limit = min(alone, key=lambda role: alone[role])
    rps = alone[limit]
    return Bound(rps, limit, {role: rps / rate for role, rate in alone.items()}, rps * costs.total_us / 1e6)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a fleet serves it, by its service times and the policy of its executors."""

    service: Service
    max_batch_size: int
    policy: Callable[[], Policy]
    overheads: Overheads


def executors_rps(executors: int, model: Model) -> float:
    """The rate of executors in virtual time, with `CALLERS` callers for each, who ask again when they are answered."""
    batch_s = model.service.seconds(model.max_batch_size)
    scenario = Scenario(
        arrivals=Callers(CALLERS * executors),
        service=model.service,
        policy=model.policy,
        duration_s=_BATCHES * batch_s,
        max_batch_size=model.max_batch_size,
        executors=executors,
        overheads=model.overheads,
        warm_up_s=_BATCHES / 4 * batch_s,
    )
    return simulate(scenario).throughput_rps


def served(costs: UnitCosts, one_rps: float) -> dict[str, int]:
    """The number of executors, each of `one_rps`, that one process of each role before them can keep busy."""
    roles = {FRONTEND: costs.frontend_us, REDIS: costs.redis_us, WORKER: costs.worker_us}
    return {role: int(1e6 / us / one_rps) for role, us in roles.items()}


def bounds(costs: UnitCosts, model: Model | None = None, sizes: Sequence[int] = SIZES) -> dict[int, Bound]:
    """The bounds of N frontends with N workers, for each N; without a model, one that takes no time."""
    return {
        size: bound(Fleet(size, size), costs, None if model is None else executors_rps(size, model)) for size in sizes
    }
