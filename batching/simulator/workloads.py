"""The workloads for the comparison of the policies, and the figures that count for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from batching.simulator.arrivals import Arrivals, Bursts, Callers, Diurnal, OnOff, Poisson
from batching.simulator.report import Report
from batching.simulator.scenario import Overheads
from batching.simulator.service import Affine, Service

MAX_BATCH_SIZE = 64
# A GPU-like model: at most 64 / 52 ms = 1,231 requests a second.
MODEL = Affine(batch_s=0.020, item_s=0.0005, jitter=0.05)
# A batch of any size takes about the same time: 64 / 56 ms = 1,143 requests a second.
FLAT_MODEL = Affine(batch_s=0.050, item_s=0.0001, jitter=0.05)
# Overhead of a request besides the model on a small machine with two cores, Redis included.
OVERHEADS = Overheads(
    submit_s=0.0010, look_s=0.0003, claim_s=0.0006, collect_s=0.0003, reply_s=0.0010, reply_item_s=0.00002
)
# A machine that also runs other programs: the answer times of 24 batches of 64, from the fastest to the slowest (0.3 to
# 13 ms), as `tests.benchmarks.virtual` measures them.
_WAYS_BACK_US = (
    *((3, 1), (20, 1), (9, 17), (39, 0), (40, 1), (0, 49), (20, 33), (25, 33), (31, 33), (37, 33), (38, 33), (39, 33)),
    *((60, 17), (0, 80), (67, 17), (86, 0), (38, 49), (91, 1), (102, 0), (113, 0), (40, 80), (68, 80), (55, 112)),
    (210, 0),
)
UNEVEN = replace(
    OVERHEADS,
    submit_item_s=0.00006,
    claim_item_s=0.00006,
    ways_back=tuple((finish / 1e6, reply / 1e6) for finish, reply in _WAYS_BACK_US),
)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a report that measures success. `sign` 1: higher is better; -1: lower."""

    name: str
    unit: str
    of: Callable[[Report], float]
    sign: int

    def behind(self, value: float, best: float) -> float:
        """The loss against the best, as a share of it; below 0: better."""
        return self.sign * (best - value) / best if best else 0.0


def _mean_ms(report: Report) -> float:
    return float(np.concatenate(report.latencies_s).mean()) * 1000


P50 = Measure("p50", "ms", lambda report: report.p50_ms or math.inf, -1)
P99 = Measure("p99", "ms", lambda report: report.p99_ms or math.inf, -1)
MEAN = Measure("mean", "ms", _mean_ms, -1)
ANSWERS = Measure("answers", "/s", lambda report: report.throughput_rps, 1)
GOODPUT = Measure("in time", "/s", lambda report: report.goodput_rps, 1)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload. `deadlines_s` are the shortest and the longest deadline of callers."""

    name: str
    says: str
    arrivals: Arrivals
    measure: Measure
    service: Service = MODEL
    duration_s: float = 60.0
    executors: int = 1
    deadlines_s: tuple[float, float] = (math.inf, math.inf)
    overheads: Overheads = OVERHEADS


WORKLOADS = (
    Workload("quiet", "5 requests/s", Poisson(5), P50, duration_s=400),
    Workload("half", "500 requests/s, 41 % of capacity", Poisson(500), MEAN),
    Workload("busy", "1,000 requests/s, 81 % of capacity", Poisson(1000), P99),
    Workload("bursts", "20 requests/s, and each second 200 within 10 ms", Bursts(20, 200, 1.0), P99),
    Workload("small bursts", "20 requests/s, and four times a second 40 within 5 ms", Bursts(20, 40, 0.25, 0.005), P99),
    Workload("crowds", "twice a second 48 within 5 ms, and nobody else", Bursts(0, 48, 0.5, 0.005), P99,
             duration_s=400),
    Workload("on-off", "900 requests/s for 2 s on the average, then 20/s for 4 s", OnOff(900, 20, 2.0, 4.0), MEAN),
    Workload("diurnal", "a day in two minutes: 50 to 1,000 requests/s", Diurnal(50, 1000, 120), MEAN, duration_s=120),
    Workload("overload", "1,500 requests/s, 122 % of capacity, each given 200 ms", Poisson(1500), GOODPUT,
             deadlines_s=(0.2, 0.2)),
    Workload("deadlines", "900 requests/s, each given 60 to 300 ms", Poisson(900), GOODPUT, deadlines_s=(0.06, 0.3)),
    Workload("callers", "64 callers who ask again when they are answered", Callers(64), ANSWERS),
    Workload("stragglers", "the same on a busy machine, where no two batches are answered alike", Callers(64), ANSWERS,
             overheads=UNEVEN),
    Workload("flat stragglers", "the same with a model of 50 ms a batch", Callers(64), ANSWERS, service=FLAT_MODEL,
             overheads=UNEVEN),
    Workload("too many to wait for", "100 callers on that machine", Callers(100), ANSWERS, overheads=UNEVEN),
    Workload("many callers", "256 callers, a model of 50 ms a batch", Callers(256), ANSWERS, service=FLAT_MODEL),
    Workload("thinking", "100 callers who think for 50 ms", Callers(100, 0.05), MEAN),
    Workload("two executors", "1,200 requests/s on two", Poisson(1200), MEAN, executors=2),
    Workload("six executors", "1,000 requests/s on six, a model of 50 ms a batch", Poisson(1000), MEAN,
             service=FLAT_MODEL, executors=6),
)  # fmt: skip
