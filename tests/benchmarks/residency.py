"""Six models with room for two: `on_demand` beside `always` with room for all, as it runs and in virtual time.

    python -m tests.benchmarks.residency [--seconds 60] [--rate 20] [--load-ms 250]

One model gets half of the arrivals, the five others the rest; arrivals are drawn beforehand, and are the same in all
four runs. The simulator gets the load times that the worker has learnt, the time in which its processes ended, and one
overhead: the median of `always` beyond its batch.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from batching.policy import Adaptive
from batching.simulator import Affine, Overheads, Recorded, Scenario
from batching.simulator.residency import OnDemand, simulate_residency
from tasks.fleet.registry_reader import Fleet
from tests.e2e.client import connected
from tests.e2e.stack import Stack

BATCH_MS = 10
# The default of `BUNCH_REQUEST_TIMEOUT_MS`.
_DEADLINE_S = 10.0
_MODEL = """
[models.{name}]
source = "tests.fakes.models:LoadsSlowly"
options = {{ load_ms = {load_ms}, batch_ms = {batch_ms} }}
residency = "{residency}"
"""
_ENDS = re.compile(r"(?m)^(\S+ \S+) .*residency: (\w+): its room is needed|^(\S+ \S+) .*executor: (\w+)/0: unloaded")

Arrivals = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """One run: seconds that each answer took, by model; requests that failed, and loads."""

    took: Mapping[str, Sequence[float]]
    failed: int
    loads: int

    def p95_ms(self, *names: str) -> float:
        every = sorted(each for name in names for each in self.took[name])
        return 1000 * every[min(len(every) - 1, int(0.95 * len(every)))]


@dataclass(frozen=True)
class Times:
    """The load times that the worker has learnt, and the time in which its processes ended, in seconds."""

    loads_s: Sequence[float]
    unload_s: float


def poisson(rate: float, seconds: float, seed: int) -> Arrivals:
    """Half of the arrivals for `half`, and the same part of the rest for each other model."""
    draws = random.Random(seed)
    found = {}
    for name in ("half", *"bcdef"):
        own = rate / 2 if name == "half" else rate / 10
        at, times = draws.expovariate(own), []
        while at < seconds:
            times.append(at)
            at += draws.expovariate(own)
        found[name] = times
    return found


def real(arrivals: Arrivals, residency: str, load_ms: int) -> tuple[Measured, Times]:
    """One run of the whole stack; the load times are of use with `on_demand` only."""
    config = 'default_model = "half"\n' + ("[server]\nmax_resident = 2\n" if residency == "on_demand" else "")
    for name in arrivals:
        config += _MODEL.format(name=name, load_ms=load_ms, batch_ms=BATCH_MS, residency=residency)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), config)
        try:
            stack.start("--web-workers=1", "--no-flower")
            measured = _drive(stack, arrivals)
            with stack.redis() as redis:
                rows = [each.on_demand for row in Fleet(redis).healthy() for each in row.models if each.on_demand]
            times = Times([(each.load_ms or 0) / 1000 for each in rows], _unload_s(stack.logs()))
            stack.stop()
        finally:
            stack.kill()
    return Measured(measured.took, measured.failed, sum(each.loads for each in rows)), times


def _drive(stack: Stack, arrivals: Arrivals) -> Measured:
    took: dict[str, list[float]] = {name: [] for name in arrivals}
    failed = 0
    with connected(stack.port) as api, ThreadPoolExecutor(128) as pool:

        def call(name: str, due: float) -> tuple[bool, float]:
            answer = api.infer(due, name)
            return answer.status == 200, time.monotonic() - due

        began, sent = time.monotonic() + 0.5, []
        for at, name in sorted((at, name) for name, times in arrivals.items() for at in times):
            time.sleep(max(0.0, began + at - time.monotonic()))
            sent.append((name, pool.submit(call, name, began + at)))
        for name, future in sent:
            ok, seconds = future.result()
            took[name].append(seconds)
            failed += not ok
    return Measured(took, failed, 0)


def _unload_s(log: str) -> float:
    """The mean time from the decision to the end of the process, from the worker's log."""
    begun: dict[str, datetime] = {}
    found = []
    for decided, leaving, ended, gone in _ENDS.findall(log):
        if leaving:
            begun[leaving] = _moment(decided)
        elif gone in begun:
            found.append((_moment(ended) - begun.pop(gone)).total_seconds())
    return mean(found) if found else 0.0


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007


def simulated(arrivals: Arrivals, room: float, times: Times, seconds: float, overhead_s: float) -> Measured:
    """The same arrivals in virtual time."""
    shared = simulate_residency(
        {
            name: OnDemand(
                Scenario(
                    arrivals=Recorded(at),
                    service=Affine(BATCH_MS / 1000),
                    policy=lambda: Adaptive(max_batch_size=64, max_wait_s=0.005),
                    duration_s=seconds,
                    deadlines_s=((_DEADLINE_S, _DEADLINE_S),) * 3,
                    overheads=Overheads(reply_s=overhead_s),
                ),
                {"models": 1.0},
                times.loads_s,
                times.unload_s,
            )
            for name, at in arrivals.items()
        },
        {"models": room},
    )
    took = {
        name: [float(each) for tier in report.latencies_s for each in tier] for name, report in shared.reports.items()
    }
    return Measured(took, shared.failed, sum(map(len, shared.loads.values())))


def main() -> None:
    """Read the arguments, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--load-ms", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    arrivals = poisson(options.rate, options.seconds, options.seed)
    always, _ = real(arrivals, "always", options.load_ms)
    demand, times = real(arrivals, "on_demand", options.load_ms)
    overhead_s = median(each for of in always.took.values() for each in of) - BATCH_MS / 1000
    runs = {
        "always": always,
        "on demand": demand,
        "on demand, simulated": simulated(arrivals, 2.0, times, options.seconds, overhead_s),
    }
    minutes = options.seconds / 60
    print(f"loads take {mean(times.loads_s) * 1000:.0f} ms, unloads {times.unload_s * 1000:.0f} ms")
    print(f"overhead {overhead_s * 1000:.1f} ms")
    others = "bcdef"
    print(
        "\n| run | failed | loads a minute | p95 of `half` | of the five others | of each |\n|---|--:|--:|--:|--:|---|"
    )
    for name, run in runs.items():
        loads = "–" if run is always else f"{run.loads / minutes:.0f}"
        each = ", ".join(f"{run.p95_ms(other):.0f}" for other in others)
        figures = f"{run.p95_ms('half'):.0f} ms | {run.p95_ms(*others):.0f} ms | {each}"
        print(f"| {name} | {run.failed} | {loads} | {figures} |")
    virtual = runs["on demand, simulated"]
    for what, ours, theirs in (
        ("loads", demand.loads, virtual.loads),
        ("p95 of half", demand.p95_ms("half"), virtual.p95_ms("half")),
        ("p95 of the others", demand.p95_ms(*others), virtual.p95_ms(*others)),
    ):
        print(f"{what}: simulated {theirs / ours - 1:+.0%}")


if __name__ == "__main__":
    main()
