"""The report of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from batching.simulator.feeder import Feeder
from batching.simulator.lanes import Lane
from batching.simulator.queues import Queues
from batching.simulator.scenario import Scenario
from batching.simulator.shards import ShardedQueues
from config.tiers import TIERS


@dataclass(slots=True)
class Served:
    """Batches as (start, size), the end of drained executors, and the counts of `Report`."""

    batches: list[tuple[float, int]] = field(default_factory=list)
    visits: int = 0
    parts: int = 0
    gone: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Rates per second, latencies in milliseconds (None: nothing was answered), the rest as counts.

    `goodput_rps` counts answers within the objective and the caller's deadline. `utilisation` is a share of the
    executors' lifetime. `unanswered` requests still waited at the end of the drain. `looks` and `visits` are the shards
    that were looked at, and that claims asked; `parts` those that had something for a batch. `latencies_s` and
    `arrived_s` are for plots, of every counted answer, per tier (highest first).
    """

    name: str
    executors: int
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    mean_batch: float | None
    utilisation: float
    refused: dict[str, int]
    requests: int
    answered: int
    expired: int
    failed: int
    unanswered: int
    batches: int
    looks: int
    visits: int
    parts: int
    duration_s: float
    per_tier_p95_ms: dict[str, float]
    latencies_s: tuple[NDArray[np.float64], ...] = field(repr=False, compare=False)
    arrived_s: tuple[NDArray[np.float64], ...] = field(repr=False, compare=False)
    batch_starts: Sequence[tuple[float, int]] = field(repr=False, compare=False)


def report(
    scenario: Scenario, queues: Queues | ShardedQueues, feeders: Sequence[Feeder], served: Served, ended_at: float
) -> Report:
    """The report; percentiles by the nearest rank, as in `manage.py bench`."""
    submit_s, since = scenario.overheads.submit_s, scenario.warm_up_s
    good, last = 0, scenario.duration_s
    # By tier, of each shard.
    took_of: list[list[NDArray[np.float64]]] = [[] for _ in TIERS]
    came_of: list[list[NDArray[np.float64]]] = [[] for _ in TIERS]
    for number, (lane, runs) in enumerate(zip(queues.lanes, queues.ledger.answered, strict=True)):
        came, took, left = _answers(lane, runs, submit_s)
        counted = came >= since
        came, took, left = came[counted], took[counted], left[counted]
        good += int(np.count_nonzero((took <= scenario.slo_s) & (left >= 0)))
        if len(came):
            last = max(last, float((came + took).max()))
        took_of[number % len(TIERS)].append(took)
        came_of[number % len(TIERS)].append(came)
    latencies = [np.concatenate(each) for each in took_of]
    arrived = [np.concatenate(each) for each in came_of]
    every = np.sort(np.concatenate(latencies))
    refused = queues.ledger.refused
    requests = sum(len(lane.times) for lane in queues.lanes) + refused.total()
    offered = sum(_since(lane.times, since + submit_s) for lane in queues.lanes) + refused.total()
    elapsed_s = max(last - since, 1e-9)
    answered = sum(end - first for runs in queues.ledger.answered for first, end, *_ in runs)
    expired, failed = queues.ledger.expired.total(), queues.ledger.failed.total()
    sizes = [size for at, size in served.batches if at >= since]
    there_s = sum(max(0.0, served.gone.get(each.number, ended_at) - each.started_at) for each in feeders)
    return Report(
        name=scenario.name,
        executors=scenario.executors,
        offered_rps=offered / (scenario.duration_s - since),
        throughput_rps=len(every) / elapsed_s,
        goodput_rps=good / elapsed_s,
        p50_ms=_percentile_ms(every, 0.50),
        p95_ms=_percentile_ms(every, 0.95),
        p99_ms=_percentile_ms(every, 0.99),
        p99_9_ms=_percentile_ms(every, 0.999),
        mean_batch=sum(sizes) / len(sizes) if sizes else None,
        utilisation=min(1.0, sum(each.busy_s for each in feeders) / there_s) if there_s > 0 else 0.0,
        refused={tier.value: refused[tier.rank] for tier in TIERS},
        requests=requests,
        answered=answered,
        expired=expired,
        failed=failed,
        unanswered=requests - answered - expired - failed - refused.total(),
        batches=len(served.batches),
        looks=queues.looks,
        visits=served.visits,
        parts=served.parts,
        duration_s=last,
        per_tier_p95_ms={
            tier.value: value
            for tier, took in zip(TIERS, latencies, strict=True)
            if (value := _percentile_ms(np.sort(took), 0.95)) is not None
        },
        latencies_s=tuple(latencies),
        arrived_s=tuple(arrived),
        batch_starts=served.batches,
    )


def _answers(
    lane: Lane, runs: Sequence[tuple[int, int, float, float]], submit_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """For each answered request: when its caller sent it, its latency, and the time left to its deadline."""
    if not runs:
        return np.empty(0), np.empty(0), np.empty(0)
    table = np.array(runs)
    first, lengths = table[:, 0].astype(np.int64), (table[:, 1] - table[:, 0]).astype(np.int64)
    # The positions of all runs, one after the other.
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    index = starts + np.arange(lengths.sum())
    came = np.asarray(lane.times)[index]
    # The answers of a batch are sent one after the other.
    place = index - np.repeat(first, lengths) + 1
    answered_at = np.repeat(table[:, 2], lengths) + np.repeat(table[:, 3], lengths) * place
    deadline = came + lane.deadline_s if lane.deadlines is None else np.asarray(lane.deadlines)[index]
    called = came - submit_s if lane.called is None else np.asarray(lane.called)[index]
    return called, answered_at - called, deadline - answered_at


def _since(times: Sequence[float], since: float) -> int:
    return int(np.count_nonzero(np.asarray(times) >= since))


def _percentile_ms(ordered: NDArray[np.float64], fraction: float) -> float | None:
    if not len(ordered):
        return None
    return float(ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]) * 1000
