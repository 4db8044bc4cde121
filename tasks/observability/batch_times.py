"""Estimates how long the batches of a running model take, from the sums of all processes in Redis.

`bunch:metrics` has sums of batch sizes and of compute times. The differences between two readings give the mean size
and the mean time of the batches in between. Since `a + b·n` is linear, so are its means, and a line fitted through
several differences gives a and b.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.observability.metrics import SharedMetrics


class NoBatches(Exception):
    """The model has run no batch yet, so nothing can be estimated."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of one model since its metrics began.

    `batches` are counted at their claim, `computed` once their `compute_s` is known. With few batches the difference
    matters: one that is inside the model at a reading would make the others look much faster.
    """

    batches: float
    requests: float
    computed: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """A batch of n takes `batch_s` + `item_s`·n; `how` says how reliable that is."""

    batch_s: float
    item_s: float
    how: str

    def seconds(self, size: int) -> float:
        return self.batch_s + self.item_s * size


def fit(totals: Sequence[Totals]) -> BatchTimes:
    """Fit a line through the intervals between the readings.

    Raises:
        NoBatches: no batch has run.
    """
    windows = [
        (
            after.batches - before.batches,
            after.requests - before.requests,
            after.computed - before.computed,
            after.compute_s - before.compute_s,
        )
        for before, after in itertools.pairwise(totals)
    ]
    points = [
        (requests / claimed, took / computed, computed)
        for claimed, requests, computed, took in windows
        if claimed > 0 and computed > 0
    ]
    if not points:
        last = totals[-1]
        if not last.computed:
            raise NoBatches("no batch of this model has run yet; send it some load")
        return BatchTimes(
            last.compute_s / last.computed, 0.0, "the mean of all earlier batches; none ran while measuring"
        )
    total = sum(weight for _, _, weight in points)
    mean_size = sum(size * weight for size, _, weight in points) / total
    mean_s = sum(time_s * weight for _, time_s, weight in points) / total
    spread = sum((size - mean_size) ** 2 * weight for size, _, weight in points) / total
    if spread < 0.01 * mean_size**2:
        how = f"all batches held about {mean_size:.1f}, so the time is assumed to be the same for any size"
        return BatchTimes(mean_s, 0.0, how)
    together = sum((size - mean_size) * (time_s - mean_s) * weight for size, time_s, weight in points) / total
    # Between "the same for any size" and "proportional to the size".
    slope = min(max(together / spread, 0.0), mean_s / mean_size)
    return BatchTimes(mean_s - slope * mean_size, slope, f"a line fitted through {len(points)} readings")


def read_totals(metrics: SharedMetrics, model: str) -> Totals:
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
        values.get("bunch_compute_seconds_count", 0.0),
        values.get("bunch_compute_seconds_sum", 0.0),
    )
