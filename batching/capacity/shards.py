"""The costs of a queue over several shards, and the fleet that a load needs with it.

    simulation ──▶ calls per request: flushes, looks, claims, finishes ──▶ processor time per request ──▶ processes

A call to one more shard costs its fixed part once more, in Redis and in the process that calls; what a request costs
inside a call stays. So the costs of one shard (`processes.MEASURED`) are those of the requests, and of the few calls
with which they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from batching.capacity.formulas import (
    HEADROOM,
    Bandwidth,
    bandwidth,
    gpus_for,
    log_bytes_per_s,
    rate_of_one,
    redis_needs,
)
from batching.capacity.processes import UnitCosts, costs_for
from batching.capacity.search import Objective, smallest_fleet
from batching.policy import Policy
from batching.simulator import Overheads, Poisson, Report, Scenario, Service, Shards, simulate
from batching.simulator.shards import EXECUTORS_OF_A_WORKER

# Requests of a simulation: percentiles are steady from here on.
_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class CallCost:
    """The fixed processor time of one call, in microseconds: of Redis, and of the frontend or worker that calls."""

    redis_us: float
    client_us: float


@dataclass(frozen=True, slots=True)
class Calls:
    """The numbers of calls to shards for one request."""

    submits: float
    looks: float
    claims: float
    finishes: float


# Measured by `python -m tests.benchmarks.script_cost`; see docs/benchmarks.md.
SUBMIT: Final = CallCost(61.0, 34.5)
LOOK: Final = CallCost(22.6, 17.3)
CLAIM: Final = CallCost(86.4, 38.0)
FINISH: Final = CallCost(30.1, 21.3)
# Requests in a flush of a frontend: between those that were measured with 64 and with 128 connections.
FLUSH = 32
# The calls with which `processes.MEASURED` was: flushes of 94, and for each batch of 56 a look, a claim and a finish.
_MEASURED_CALLS = Calls(1 / 94, 1 / 56, 1 / 56, 1 / 56)


def shards_of_flush(shards: int, flush: int = FLUSH) -> float:
    """The expected number of shards that `flush` requests go to, each on any of them."""
    return shards * (1 - (1 - 1 / shards) ** flush)


def calls_of(report: Report, shards: int) -> Calls:
    """The calls of a simulated load for each of its requests."""
    answered = max(1, report.answered)
    return Calls(
        submits=shards_of_flush(shards) / FLUSH,
        looks=report.looks / answered,
        claims=report.visits / answered,
        finishes=report.parts / answered,
    )


def costs_of(costs: UnitCosts, calls: Calls) -> UnitCosts:
    """The costs of a request with other calls than those of the measurement."""
    more = Calls(
        calls.submits - _MEASURED_CALLS.submits,
        calls.looks - _MEASURED_CALLS.looks,
        calls.claims - _MEASURED_CALLS.claims,
        calls.finishes - _MEASURED_CALLS.finishes,
    )
    worker = ((more.looks, LOOK), (more.claims, CLAIM), (more.finishes, FINISH))
    every = ((more.submits, SUBMIT), *worker)
    return UnitCosts(
        frontend_us=costs.frontend_us + more.submits * SUBMIT.client_us,
        redis_us=costs.redis_us + sum(count * call.redis_us for count, call in every),
        worker_us=costs.worker_us + sum(count * call.client_us for count, call in worker),
        executor_us=costs.executor_us,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeLoad:
    """A load whose queue spans several shards.

    Args:
        rps: of all models together.
        models: number of equal models; each has executors of its own.
        payload_bytes: size of an input, and of an output.
        retention_s: how long results are kept; 10 s where a frontend has heard them.
    """

    rps: float
    models: int
    service: Service
    max_batch_size: int
    policy: Callable[[], Policy]
    overheads: Overheads
    tiers: tuple[float, float, float] = (0.05, 0.25, 0.70)
    payload_bytes: int = 1024
    retention_s: float = 10.0
    seed: int = 1

    @property
    def model_rps(self) -> float:
        return self.rps / self.models

    @property
    def executors(self) -> int:
        """Those of one model, at the designs' utilisation with full batches."""
        return gpus_for(self.model_rps, rate_of_one(self.max_batch_size, self.service.seconds(self.max_batch_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFleet:
    """The processes that a load needs, each planned to be busy for `HEADROOM` of the time, and what they move.

    `redis_nodes` are primaries, each with one thread that runs commands; replicas come on top. Shards are not divided:
    the busiest node has the most of them, and is busy for `redis_busy`. Bytes of Redis are those of all primaries.
    """

    shards: Shards
    report: Report
    calls: Calls
    costs: UnitCosts
    executors: int
    frontends: int
    workers: int
    redis_nodes: int
    redis_busy: float
    memory_bytes: float
    bandwidth: Bandwidth
    log_bytes_per_s: float
    connections: int

    @property
    def feasible(self) -> bool:
        """False if one shard alone is too much for a node."""
        return self.redis_busy <= HEADROOM


def scenario_of(load: LargeLoad, shards: Shards) -> Scenario:
    """One model of the load."""
    duration_s = _REQUESTS / load.model_rps
    return Scenario(
        arrivals=Poisson(load.model_rps),
        service=load.service,
        policy=load.policy,
        duration_s=duration_s,
        max_batch_size=load.max_batch_size,
        executors=load.executors,
        shards=shards,
        tiers=load.tiers,
        overheads=load.overheads,
        warm_up_s=duration_s / 3,
        drain_s=10.0,
    )


def fleet(load: LargeLoad, shards: Shards) -> ShardedFleet:
    """Pure: the same load on the same shards gives the same fleet."""
    report = simulate(scenario_of(load, shards), load.seed)
    calls = calls_of(report, shards.count)
    costs = costs_of(costs_for(load.payload_bytes), calls)
    executors = load.executors * load.models
    latency_s = (report.p50_ms or 0.0) / 1000
    shard_busy = load.rps * costs.redis_us / 1e6 / shards.count
    nodes = math.ceil(shards.count / max(1, int(HEADROOM / shard_busy)))
    needs = redis_needs(
        load.rps,
        report.mean_batch or 1.0,
        latency_s,
        payload_bytes=load.payload_bytes,
        retention_s=load.retention_s,
    )
    return ShardedFleet(
        shards=shards,
        report=report,
        calls=calls,
        costs=costs,
        executors=executors,
        frontends=_processes(load.rps, costs.frontend_us),
        workers=max(math.ceil(executors / EXECUTORS_OF_A_WORKER), _processes(load.rps, costs.worker_us)),
        redis_nodes=nodes,
        redis_busy=shard_busy * math.ceil(shards.count / nodes),
        memory_bytes=needs.memory_bytes,
        bandwidth=bandwidth(load.rps, load.payload_bytes),
        log_bytes_per_s=log_bytes_per_s(load.rps, load.payload_bytes),
        connections=math.ceil(load.rps * latency_s),
    )


def executors_for(load: LargeLoad, shards: Shards, objective: Objective, most: int) -> int | None:
    """The smallest number of executors of one model that meets the objective; None: not even `most` do."""
    scenario = scenario_of(load, shards)
    found = smallest_fleet(scenario, objective, least=math.ceil(HEADROOM * load.executors), most=most, seed=load.seed)
    return None if found is None else found.executors


def _processes(rps: float, each_us: float) -> int:
    return max(1, math.ceil(rps * each_us / 1e6 / HEADROOM))
