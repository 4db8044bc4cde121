"""`python -m tests.benchmarks.perf_analyzer`: NVIDIA's own load generator against Bunch and Triton, with one command.

Both serve the same two models, each as `python -m tests.benchmarks` starts it, and take turns in each round. What
perf_analyzer measures itself stands beside what it reads from the server's statistics: the time in the queue and in
the model. It repeats one input, so Bunch runs without its cache.

It needs `libb64.so.0d` (Debian: `libb64-0d`), on the machine or in a folder that LD_LIBRARY_PATH names.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.rival_systems import Triton
from tests.benchmarks.rounds import say_on_stderr
from tests.benchmarks.system import MODELS, Model, System
from tests.benchmarks.venvs import python_of

logger = logging.getLogger("tests.benchmarks")

_INPUT = "a" * 64
# Enough for seconds at each level, and for several batches of the slow model.
_REQUESTS: dict[Model, dict[bool, int]] = {"noop": {True: 2_000, False: 20_000}, "50ms": {True: 100, False: 5_000}}
_THREADS = 4
_LIMIT_S = 300.0
_NAMES: dict[str, dict[Model, str]] = {
    "bunch": {"noop": "noop", "50ms": "sim50"},
    "triton": dict.fromkeys(MODELS, "stand_in"),
}


class AnalyzerFailedError(Exception):
    """perf_analyzer reported no figures; the text has the end of its output."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Latencies and times are microseconds; the last two are the server's own, means over all requests."""

    requests_per_s: float
    p50_us: float
    p99_us: float
    queue_us: float
    compute_us: float


def read_report(lines: Iterable[str]) -> Figures:
    """The figures in a report that perf_analyzer has written with `-f`. Raises AnalyzerFailedError."""
    rows = list(csv.DictReader(lines))
    if len(rows) != 1:
        raise AnalyzerFailedError(f"{len(rows)} rows in the report instead of one")
    (row,) = rows
    return Figures(
        requests_per_s=float(row["Inferences/Second"]),
        p50_us=float(row["p50 latency"]),
        p99_us=float(row["p99 latency"]),
        queue_us=float(row["Server Queue"]),
        compute_us=float(row["Server Compute Infer"]),
    )


def analyze(system: System, model: Model, concurrency: int) -> Figures:
    """Run perf_analyzer once against a system that serves `model`. Raises AnalyzerFailedError."""
    python = python_of("perf_analyzer")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(python.parents[1])}))
    libraries = [str(packages / "nvidia" / "cuda_runtime" / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    report = system.folder / "report.csv"
    command = [
        *(str(python.parent / "perf_analyzer"), "-m", _NAMES[system.name][model], "-i", "http"),
        *("-u", system.url.removeprefix("http://"), f"--concurrency-range={concurrency}"),
        *("--async", f"--max-threads={_THREADS}", f"--request-count={_REQUESTS[model][concurrency == 1]}"),
        *(f"--string-data={_INPUT}", "-f", str(report)),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
        env=os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))},
    )
    if done.returncode or not report.exists():
        raise AnalyzerFailedError((done.stdout + done.stderr)[-2000:])
    with report.open() as lines:
        figures = read_report(lines)
    report.unlink()
    return figures


def median_of(runs: Sequence[Figures]) -> Figures:
    """The median of each figure by itself."""
    return Figures(*(statistics.median(values) for values in zip(*(asdict(run).values() for run in runs), strict=True)))


def table(found: dict[tuple[Model, int], dict[str, Figures]]) -> str:
    """The figures as a Markdown table, a row per model, concurrency and system."""
    lines = [
        "| model | concurrent | system | requests/s | p50 ms | p99 ms | queue ms | compute ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (model, concurrency), by_system in found.items():
        for name, each in by_system.items():
            times = (each.p50_us, each.p99_us, each.queue_us, each.compute_us)
            shown = " | ".join(f"{time / 1000:.1f}" for time in times)
            lines.append(f"| {model} | {concurrency} | {name} | {each.requests_per_s:,.0f} | {shown} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--concurrency", "levels", default=[1, 64, 256], multiple=True, type=click.IntRange(1), show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The medians as JSON.")
def main(levels: Sequence[int], rounds: int, as_json: bool) -> None:
    say_on_stderr()
    systems: tuple[System, ...] = (Bunch(), Triton())
    for each in systems:
        each.prepare()
    runs: dict[tuple[Model, int], dict[str, list[Figures]]] = {}
    for number in range(rounds):
        for model in MODELS:
            for system in systems:
                with system.running(model):
                    for level in levels:
                        logger.info("round %d: %s, %s, %d concurrent", number + 1, system.name, model, level)
                        figures = analyze(system, model, level)
                        runs.setdefault((model, level), {}).setdefault(system.name, []).append(figures)
    found = {case: {name: median_of(each) for name, each in by.items()} for case, by in runs.items()}
    if as_json:
        rows = [
            {"model": model, "concurrency": level, "system": name, **asdict(each)}
            for (model, level), by in found.items()
            for name, each in by.items()
        ]
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
