"""Figures of a load: rates, percentiles, batch sizes. Calculation only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from cli.loadgen.client_load import Client
from cli.loadgen.load import NO_ANSWER, Answer

# A single answer after an hour must not add a million requests.
_MAX_ADDED = 10_000


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the 200s, in milliseconds; None when there were none."""

    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None


class TierSummary(Percentiles, frozen=True, kw_only=True):
    """The figures of one tier. `goodput_rps` counts only 200s within the SLO."""

    rps: float
    goodput_rps: float
    codes: dict[str, int]


class Summary(TierSummary, frozen=True, kw_only=True):
    """The output of `bench --json`.

    The percentiles are corrected for coordinated omission; `uncorrected` has the raw ones. In an open loop the raw
    latency counts from when the request was sent instead of from when it was due. In a closed loop the raw latencies
    lack the requests that callers would have sent had they not been kept waiting. `mean_batch` is requests per batch.
    """

    mean_batch: float | None
    requests: int
    duration_s: float
    slo_ms: float
    offered_rps: float | None = None
    callers: int | None = None
    uncorrected: Percentiles | None = None
    tiers: dict[str, TierSummary] = {}
    client: Client | None = None


def summarise(
    answers: Sequence[Answer],
    elapsed_s: float,
    slo_s: float,
    *,
    offered_rps: float | None = None,
    callers: int | None = None,
    client: Client | None = None,
) -> Summary:
    """The figures of these answers. With `callers` they are from a closed loop, and the percentiles are corrected."""
    by_tier: dict[str, list[Answer]] = {}
    for answer in answers:
        by_tier.setdefault(answer.tier, []).append(answer)
    # Each tier by itself: the usual latency of one tier would look like a stall next to another's.
    good = {tier: corrected(each) if callers else _latencies(each) for tier, each in by_tier.items()}
    elapsed_s = max(elapsed_s, 1e-9)
    return Summary(
        **_percentiles(latency for each in good.values() for latency in each),
        **_rates(answers, elapsed_s, slo_s),
        mean_batch=mean_batch(answers),
        requests=len(answers),
        duration_s=round(elapsed_s, 3),
        slo_ms=round(slo_s * 1000, 3),
        offered_rps=offered_rps,
        callers=callers,
        uncorrected=Percentiles(**_percentiles(answer.service_s for answer in answers if answer.status == 200)),
        tiers={
            tier: TierSummary(**_percentiles(good[tier]), **_rates(by_tier[tier], elapsed_s, slo_s))
            for tier in by_tier
            if tier
        },
        client=client,
    )


def corrected(answers: Sequence[Answer]) -> list[float]:
    """The latencies of a closed loop, with those of the requests that were not sent while their callers had to wait.

    The method of HdrHistogram: a caller is expected to send one request per median latency. During a longer wait it
    would have sent more, and each of these would have waited for the rest of that time.
    """
    good = _latencies(answers)
    interval = median(good) if good else 0.0
    if interval <= 0:
        return good
    added = []
    for latency in good:
        steps = min(_MAX_ADDED, int(latency / interval) - 1)
        added += [latency - step * interval for step in range(1, steps + 1)]
    return good + added


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


def code_of(answer: Answer) -> str:
    return "no answer" if answer.status == NO_ANSWER else str(answer.status)


def _latencies(answers: Iterable[Answer]) -> list[float]:
    return [answer.latency_s for answer in answers if answer.status == 200]


def _rates(answers: Sequence[Answer], elapsed_s: float, slo_s: float) -> dict[str, Any]:
    in_time = sum(answer.status == 200 and answer.latency_s <= slo_s for answer in answers)
    return {
        "rps": round(len(answers) / elapsed_s, 1),
        "goodput_rps": round(in_time / elapsed_s, 1),
        "codes": dict(sorted(Counter(code_of(answer) for answer in answers).items())),
    }


def _percentiles(latencies_s: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(latencies_s)
    return {
        name: _ms(percentile(ordered, fraction))
        for name, fraction in (("p50_ms", 0.50), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p99_9_ms", 0.999))
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
