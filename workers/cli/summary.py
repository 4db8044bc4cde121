"""Numbers of a load: rates, percentiles, batch sizes. Calculation only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from workers.cli.load import Answer


class Summary(msgspec.Struct, frozen=True):
    """What `bench --json` prints. Latencies are of the 200s, in milliseconds.

    `goodput_rps` counts only what came back with 200 within its deadline. `mean_batch` is requests per batch.
    """

    rps: float
    goodput_rps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    codes: dict[str, int]
    mean_batch: float | None
    requests: int
    duration_s: float


def summarise(answers: Sequence[Answer], elapsed_s: float, deadline_s: float) -> Summary:
    good = sorted(answer.latency_s for answer in answers if answer.status == 200)
    in_time = sum(latency <= deadline_s for latency in good)
    elapsed_s = max(elapsed_s, 1e-9)
    codes = Counter("no answer" if answer.status == 0 else str(answer.status) for answer in answers)
    return Summary(
        rps=round(len(answers) / elapsed_s, 1),
        goodput_rps=round(in_time / elapsed_s, 1),
        p50_ms=_ms(percentile(good, 0.50)),
        p95_ms=_ms(percentile(good, 0.95)),
        p99_ms=_ms(percentile(good, 0.99)),
        codes=dict(sorted(codes.items())),
        mean_batch=mean_batch(answers),
        requests=len(answers),
        duration_s=round(elapsed_s, 3),
    )


def percentile(ordered: Sequence[float], fraction: float) -> float | None:
    """The smallest value that `fraction` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)] if ordered else None


def mean_batch(answers: Sequence[Answer]) -> float | None:
    """Requests per batch. A batch of n answers n times, so each answer stands for 1/n of a batch."""
    sizes = [answer.batch_size for answer in answers if answer.batch_size]
    return round(len(sizes) / sum(1 / size for size in sizes), 2) if sizes else None


def histogram(values: Sequence[float], bins: int) -> list[tuple[float, float, int]]:
    """Counts over `bins` ranges that grow by a constant factor, as latencies spread over magnitudes."""
    if not values:
        return []
    low, high = max(min(values), 1e-6), max(*values, 2e-6)
    factor = (high / low) ** (1 / bins) if high > low else 1.0
    edges = [low * factor**n for n in range(bins)] + [high]
    counts = [0] * bins
    for value in values:
        place = int(math.log(max(value, low) / low) / math.log(factor)) if factor > 1 else 0
        counts[min(place, bins - 1)] += 1
    return [(edges[n], edges[n + 1], counts[n]) for n in range(bins)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
