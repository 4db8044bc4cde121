"""Measures the load and the batch times of a running system, for `plan --from-live`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.base import locate, places_of

if TYPE_CHECKING:
    from tasks.fleet.queue_reader import QueueReader
    from tasks.observability.batch_times import BatchTimes


@dataclass(frozen=True, slots=True)
class LiveMeasurement:
    """The figures of one model as it is served now."""

    model: str
    rps: float
    times: BatchTimes
    max_batch_size: int
    batch_sizes: tuple[int, ...] = ()


def measure(
    config_file: Path | None, model: str | None, watch_s: float, sleep: Callable[[float], None] = time.sleep
) -> LiveMeasurement:
    """Measure the running stack.

    Raises:
        click.UsageError: the model is not configured, or has run no batch.
    """
    from tasks.fleet.queue_reader import QueueReader
    from tasks.fleet.registry_reader import Fleet
    from tasks.observability.batch_times import NoBatches, fit, read_totals
    from tasks.observability.metrics import SharedMetrics

    settings = locate(config_file)
    name = model or settings.default_model
    if name not in settings.models:
        raise click.UsageError(f"model {name!r} is not configured; use one of {', '.join(settings.models)}")
    places = places_of(settings)
    fleet = Fleet(places.home.redis, lease_ttl_s=settings.lease_ttl_s)
    waiting, metrics = QueueReader(places, fleet), SharedMetrics(places.home.redis)
    totals, rates = [read_totals(metrics, name)], []
    for _ in range(max(1, round(watch_s))):
        sleep(1.0)
        totals.append(read_totals(metrics, name))
        rates.append(_rate(waiting, name))
    try:
        times = fit(totals)
    except NoBatches as error:
        raise click.UsageError(f"{error}, or give --batch-ms") from error
    served = settings.models[name]
    return LiveMeasurement(name, sum(rates) / len(rates), times, served.max_batch_size, served.batch_sizes)


def _rate(waiting: QueueReader, model: str) -> float:
    return sum(row.arrival_rps for row in waiting.queues([model]))
