"""Plots of simulated runs, without a display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from batching.simulator import Report

_WINDOWS = 60


def compare(reports: Mapping[str, Report], path: Path) -> None:
    """Write one figure: the distribution of latencies, latencies over the run, and batch sizes.

    Raises:
        ValueError: the suffix of the file is not supported.
    """
    figure = Figure(figsize=(13, 4), layout="constrained")
    tail, course, batches = figure.subplots(1, 3)
    for name, report in reports.items():
        took_ms = np.concatenate(report.latencies_s) * 1000
        if not len(took_ms):
            continue
        ordered = np.sort(took_ms)
        beyond = 1 - np.arange(len(ordered)) / len(ordered)
        # A thousand points draw the same line as a million.
        step = max(1, len(ordered) // 1000)
        tail.plot(np.append(ordered[::step], ordered[-1]), np.append(beyond[::step], beyond[-1]), label=name)
        came = np.concatenate(report.arrived_s)
        edges = np.linspace(0, float(came.max()) + 1e-9, _WINDOWS + 1)
        place = np.clip(np.digitize(came, edges) - 1, 0, _WINDOWS - 1)
        p99 = [np.percentile(took_ms[place == n], 99) if (place == n).any() else np.nan for n in range(_WINDOWS)]
        course.plot((edges[:-1] + edges[1:]) / 2, p99, label=name)
        # Cumulative: requests by the size of the batch that they were in.
        sizes = Counter(size for _, size in report.batch_starts)
        total, so_far, xs, ys = sum(size * count for size, count in sizes.items()), 0, [0], [0.0]
        for size in sorted(sizes):
            so_far += size * sizes[size]
            xs.append(size)
            ys.append(so_far / total)
        batches.step(xs, ys, where="post", label=name)
    tail.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="fraction of requests that take longer")
    course.set(xlabel="arrival, s", ylabel="p99, ms", ylim=(0, None))
    batches.set(xlabel="batch size", ylabel="fraction of requests in batches up to this size", ylim=(0, 1.02))
    for axes in (tail, course, batches):
        axes.grid(alpha=0.3)
    tail.legend()
    figure.savefig(path)
