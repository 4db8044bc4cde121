"""What a running system says of its own load and its own batch times.

Sums of batch sizes and of compute times stand in Redis, over all processes. Read once a second, their differences give
the mean size and the mean time of the batches in between; since `a + b·n` is linear, so are its means, and a line
through them gives a and b.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from config.settings import Settings
from tasks.fleet import Fleet
from tasks.metrics import SharedMetrics
from workers.cli.base import locate, redis_of


@dataclass(frozen=True, slots=True)
class Live:
    """`how` says how far to believe `batch_s` and `item_s`."""

    model: str
    rps: float
    batch_s: float
    item_s: float
    how: str
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one model since the start of its metrics."""

    batches: float
    requests: float
    compute_s: float


def measure(
    config_file: Path | None, model: str | None, watch_s: float, sleep: Callable[[float], None] = time.sleep
) -> Live:
    """Watch the running stack.

    Raises:
        click.UsageError: the model is not configured, or has run no batch.
    """
    settings = locate(config_file)
    name = model or settings.default_model
    if name not in settings.models:
        raise click.UsageError(f"no model {name!r} is configured; there are {', '.join(settings.models)}")
    redis = redis_of(settings)
    fleet, metrics = Fleet(redis, lease_ttl_s=settings.lease_ttl_s), SharedMetrics(redis)
    totals, rates = [_totals(metrics, name)], []
    for _ in range(max(1, round(watch_s))):
        sleep(1.0)
        totals.append(_totals(metrics, name))
        rates.append(_rate(fleet, settings, name))
    batch_s, item_s, how = fit(totals)
    return Live(name, sum(rates) / len(rates), batch_s, item_s, how, settings.models[name].max_batch_size)


def fit(totals: Sequence[Totals]) -> tuple[float, float, str]:
    """`a`, `b` and how they were found.

    Raises:
        click.UsageError: no batch has run.
    """
    windows = [
        (after.batches - before.batches, after.requests - before.requests, after.compute_s - before.compute_s)
        for before, after in itertools.pairwise(totals)
    ]
    points = [(requests / count, took / count, count) for count, requests, took in windows if count > 0]
    if not points:
        last = totals[-1]
        if not last.batches:
            raise click.UsageError("no batch of this model has run yet; send it some load, or say --batch-ms")
        return last.compute_s / last.batches, 0.0, "the mean of all its batches; none ran meanwhile"
    sizes, times, weights = (np.array(each) for each in zip(*points, strict=True))
    mean_size, mean_s = np.average(sizes, weights=weights), np.average(times, weights=weights)
    spread = np.average((sizes - mean_size) ** 2, weights=weights)
    if spread < 0.01 * mean_size**2:
        return (
            float(mean_s),
            0.0,
            f"all batches held about {mean_size:.1f}, so the time is taken as the same for any size",
        )
    slope = np.average((sizes - mean_size) * (times - mean_s), weights=weights) / spread
    # Between "the same for any size" and "in proportion to it".
    slope = float(min(max(slope, 0.0), mean_s / mean_size))
    return float(mean_s - slope * mean_size), slope, f"a line through {len(points)} seconds"


def _totals(metrics: SharedMetrics, model: str) -> Totals:
    values = {
        sample.name: sample.value
        for family in metrics.collect()
        if family.name in {"bunch_batch_size", "bunch_compute_seconds"}
        for sample in family.samples
        if sample.labels.get("model") == model and not sample.name.endswith("_bucket")
    }
    return Totals(
        values.get("bunch_batch_size_count", 0.0),
        values.get("bunch_batch_size_sum", 0.0),
        values.get("bunch_compute_seconds_sum", 0.0),
    )


def _rate(fleet: Fleet, settings: Settings, model: str) -> float:
    return sum(row.arrival_rps for row in fleet.queues({model: settings.models[model]}))
