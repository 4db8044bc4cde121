"""Plots of a load test: outcomes over time, latencies over time, and the tail of the latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cli.loadgen.load import Answer
from cli.loadgen.summary import Percentiles, Summary, percentile

FORMATS = (".png", ".svg")
_SLICES = 60
# Kinds of answers in stacking order, in colours that a colour-blind reader can tell apart.
_KINDS: tuple[tuple[str, str], ...] = (
    ("200 within the SLO", "#0072b2"),
    ("200, later", "#e69f00"),
    ("refused (4xx, 503)", "#999999"),
    ("failed", "#d55e00"),
)
_TAIL = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999)


def plot(path: Path, answers: Sequence[Answer], summary: Summary) -> None:
    """Write `path` as PNG or SVG, by its suffix."""
    # Imported late: it takes a second, which other commands should not pay.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    rates, latencies, tail = figure.subplots(3, 1)
    figure.suptitle(_title(summary))
    begin = min((each.finished_s - each.latency_s for each in answers), default=0.0)
    end = max((each.finished_s for each in answers), default=1.0)
    width = max(1e-3, (end - begin) / _SLICES)

    def slice_of(each: Answer) -> int:
        return min(_SLICES - 1, int((each.finished_s - begin) / width))

    times = [begin + (n + 0.5) * width for n in range(_SLICES)]
    _draw_rates(rates, answers, times, width, summary, slice_of)
    _draw_latencies(latencies, answers, times, summary, slice_of)
    _draw_tail(tail, answers, summary)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def kind_of(answer: Answer, slo_s: float) -> int:
    """The index of an answer's kind in `_KINDS`."""
    if answer.status == 200:
        return 0 if answer.latency_s <= slo_s else 1
    return 2 if 400 <= answer.status < 500 or answer.status == 503 else 3


def _title(summary: Summary) -> str:
    if summary.offered_rps is not None:
        load = f"open loop, {summary.offered_rps:,.0f} requests/s offered"
    else:
        load = f"closed loop, {summary.callers} callers"
    return f"{load}: {summary.rps:,.0f}/s answered, {summary.goodput_rps:,.0f}/s good within {summary.slo_ms:g} ms"


def _draw_rates(
    axes: Any,
    answers: Sequence[Answer],
    times: list[float],
    width: float,
    summary: Summary,
    slice_of: Callable[[Answer], int],
) -> None:
    counts = [[0.0] * _SLICES for _ in _KINDS]
    for each in answers:
        counts[kind_of(each, summary.slo_ms / 1000)][slice_of(each)] += 1 / width
    shown = [n for n, row in enumerate(counts) if any(row)]
    if shown:
        names, colors = zip(*(_KINDS[n] for n in shown), strict=True)
        axes.stackplot(times, [counts[n] for n in shown], labels=names, colors=colors)
        axes.legend(loc="lower right", fontsize="small")
    if summary.offered_rps is not None:
        axes.axhline(summary.offered_rps, color="black", linestyle=":", label="offered")
    axes.set(ylabel="answers/s", xlabel="seconds")


def _draw_latencies(
    axes: Any, answers: Sequence[Answer], times: list[float], summary: Summary, slice_of: Callable[[Answer], int]
) -> None:
    slices: list[list[float]] = [[] for _ in times]
    for each in answers:
        if each.status == 200:
            slices[slice_of(each)].append(each.latency_s * 1000)
    for each_slice in slices:
        each_slice.sort()
    for fraction, style in ((0.5, "-"), (0.95, "--"), (0.99, ":")):
        values = [percentile(each_slice, fraction) for each_slice in slices]
        axes.plot(
            times, [math.nan if value is None else value for value in values], style, label=f"p{fraction * 100:g}"
        )
    axes.axhline(summary.slo_ms, color="#d55e00", linewidth=0.8, label="SLO")
    axes.set(ylabel="ms", xlabel="seconds", yscale="log")
    axes.legend(loc="upper right", fontsize="small", ncols=4)


def _draw_tail(axes: Any, answers: Sequence[Answer], summary: Summary) -> None:
    by_tier: dict[str, list[float]] = {}
    for each in answers:
        if each.status == 200:
            by_tier.setdefault(each.tier or "as measured", []).append(each.latency_s * 1000)
    places = [math.log10(1 / (1 - fraction)) for fraction in _TAIL]
    for name, values in by_tier.items():
        values.sort()
        known = [n for n, fraction in enumerate(_TAIL) if (1 - fraction) * len(values) >= 1]
        axes.plot([places[n] for n in known], [percentile(values, _TAIL[n]) for n in known], label=name)
    corrected = _points(summary)
    if corrected:
        axes.plot(*zip(*corrected, strict=True), "kx", label="all, corrected")
    axes.set(ylabel="ms", xlabel="percentile", yscale="log")
    marks = (0.5, 0.9, 0.99, 0.999, 0.9999)
    axes.set_xticks([math.log10(1 / (1 - mark)) for mark in marks], [f"{mark * 100:g}" for mark in marks])
    if axes.lines:
        axes.legend(loc="upper left", fontsize="small")


def _points(of: Percentiles) -> list[tuple[float, float]]:
    pairs = ((0.5, of.p50_ms), (0.95, of.p95_ms), (0.99, of.p99_ms), (0.999, of.p99_9_ms))
    return [(math.log10(1 / (1 - fraction)), value) for fraction, value in pairs if value is not None]
