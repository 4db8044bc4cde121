"""The resources that a load needs: GPUs, web processes, Redis, money. Formulas first, then confirmed in virtual
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from batching.batch_sizes import padded
from batching.capacity.formulas import (
    HEADROOM,
    Bandwidth,
    RedisNeeds,
    bandwidth,
    batches,
    cost_per_million,
    gpus_for,
    rate_of_one,
    redis_needs,
)
from batching.capacity.search import Objective, long_enough, smallest_fleet
from batching.policy import Policy
from batching.simulator import Overheads, Poisson, Report, Scenario, Service, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load to plan for.

    Args:
        gb_cost: price of 10^9 bytes sent to callers, in the currency of `gpu_hour_cost`.
        web_rps: requests per second of one web process at full load.
        retention_s: how long results are kept; `payload_bytes` is the size of an input, and of an output.
        headroom: planned utilisation of a GPU.
        most: largest fleet to consider.
        requests: number of requests per simulation: fewer are faster, and give coarser percentiles.
    """

    rps: float
    objective: Objective
    service: Service
    max_batch_size: int
    batch_sizes: tuple[int, ...] = ()
    policy: Callable[[], Policy]
    overheads: Overheads
    gpu_hour_cost: float = 0.0
    gb_cost: float = 0.0
    payload_bytes: int = 1024
    retention_s: float = 60.0
    web_rps: float = 2500.0
    headroom: float = HEADROOM
    most: int = 2000
    requests: int = 150_000
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan. `gpus` meets the objective with the headroom, `smallest` without, `raw` is rate / rate of one GPU."""

    feasible: bool
    why: str
    gpus: int = 0
    raw: int = 0
    by_formula: int = 0
    smallest: int = 0
    rate_of_one: float = 0.0
    queueing_wait_s: float = 0.0
    web_processes: int = 0
    connections: int = 0
    redis: RedisNeeds | None = None
    bandwidth: Bandwidth | None = None
    cost_per_million: float = 0.0
    report: Report | None = None


def plan(load: Load) -> Plan:
    """Pure: the same load gives the same plan."""
    overheads = load.overheads
    spent_s = overheads.submit_s + overheads.claim_s + overheads.collect_s + overheads.reply_s + overheads.reply_item_s
    alone_s = load.service.seconds(padded(1, load.batch_sizes)) + spent_s
    if alone_s > load.objective.slo_s:
        return Plan(
            feasible=False,
            why=f"one request takes {alone_s * 1000:.0f} ms, and the objective is {load.objective.slo_s * 1000:.0f} "
            "ms: more GPUs do not help; a faster model does",
        )
    full_s = load.service.seconds(padded(load.max_batch_size, load.batch_sizes))
    rate = rate_of_one(load.max_batch_size, full_s, overheads.claim_s + overheads.collect_s)
    raw, by_formula = gpus_for(load.rps, rate, 1.0), gpus_for(load.rps, rate, load.headroom)
    scenario = Scenario(
        arrivals=Poisson(load.rps),
        service=load.service,
        policy=load.policy,
        duration_s=long_enough(load.rps, load.objective.slo_s, load.requests),
        max_batch_size=load.max_batch_size,
        batch_sizes=load.batch_sizes,
        overheads=overheads,
        slo_s=load.objective.slo_s,
        drain_s=10 * load.objective.slo_s,
    )
    if raw > load.most:
        return Plan(
            feasible=False, why=f"at least {raw:,} GPUs, more than the {load.most:,} allowed", raw=raw, rate_of_one=rate
        )
    found = smallest_fleet(scenario, load.objective, least=raw, most=load.most, seed=load.seed)
    if found is None:
        return Plan(feasible=False, why=_why_not(load, full_s), raw=raw, by_formula=by_formula, rate_of_one=rate)
    gpus = max(found.executors, by_formula)
    report = found.report if gpus == found.executors else simulate(replace(scenario, executors=gpus), load.seed)
    latency_s = (report.p50_ms or 0.0) / 1000
    return Plan(
        feasible=True,
        why=_why(load, found.executors, by_formula, report),
        gpus=gpus,
        raw=raw,
        by_formula=by_formula,
        smallest=found.executors,
        rate_of_one=rate,
        queueing_wait_s=batches(load.rps, gpus, load.max_batch_size, full_s).wait_s(load.objective.fraction),
        web_processes=max(1, math.ceil(load.rps / load.web_rps / load.headroom)),
        connections=math.ceil(load.rps * latency_s),
        redis=redis_needs(
            load.rps,
            report.mean_batch or 1.0,
            latency_s,
            payload_bytes=load.payload_bytes,
            retention_s=load.retention_s,
        ),
        bandwidth=bandwidth(load.rps, load.payload_bytes),
        cost_per_million=cost_per_million(
            gpus, load.gpu_hour_cost, load.rps, payload_bytes=load.payload_bytes, gb_cost=load.gb_cost
        ),
        report=report,
    )


def _why(load: Load, smallest: int, by_formula: int, report: Report) -> str:
    measured = f"p99 {report.p99_ms:.0f} ms in simulation" if report.p99_ms is not None else "no request was answered"
    used = f"{load.headroom:.0%}"
    if by_formula >= smallest:
        return (
            f"{by_formula} by the formula at {used} utilisation, confirmed: {measured}; {smallest} would just meet it"
        )
    return (
        f"the formula's {by_formula} at {used} utilisation are not enough: it leaves out the wait for a batch and "
        f"for a free GPU; {smallest} meet it: {measured}"
    )


def _why_not(load: Load, full_s: float) -> str:
    asked = f"{load.objective.fraction:.2%} within {load.objective.slo_s * 1000:.0f} ms"
    return (
        f"even {load.most:,} GPUs do not answer {asked}: a batch of {load.max_batch_size} takes {full_s * 1000:.0f} ms "
        "and a request waits for one and runs in the next; use smaller batches or a faster model"
    )
