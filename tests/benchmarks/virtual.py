"""`python -m tests.benchmarks.virtual`: the same workloads on the running system and in virtual time, side by side.

The model is `simulated`: 20 ms + 0.5 ms per item, up to 64, all times `--scale`. The larger the scale, the smaller the
effect of the machine's noise; at 1 nothing else may run on it. For each policy the system is started and driven with
arrivals drawn beforehand, between two calibrations (`tests.benchmarks.calibration`): other loads than those compared
give the overheads of this machine. Then the simulator gets exactly the same arrivals, and the overheads of all
calibrations together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np

from batching.simulator import Affine, Arrivals, Bursts, Callers, Overheads, Poisson, Recorded, Scenario, simulate
from cli.loadgen.load import Run
from cli.loadgen.summary import summarise
from cli.plan.simulate import make_maker
from config.redis import connect
from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.calibration import MAX, MODELS, TIMEOUT_S, calibrate, drive, pooled

_BATCH_MS, _ITEM_MS, _MAX_WAIT_MS = 20.0, 0.5, 50.0

_CONFIG = """
default_model = "sim"

[models.sim]
source = "workers.models.simulated:Simulated"
max_batch_size = {size}
max_wait_ms = {max_wait_ms}
policy = "{policy}"
options = {{ batch_ms = {batch_ms}, item_ms = {item_ms} }}
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Open arrivals or a closed loop; at scale 1 the model's own limit is 64 / 52 ms = 1,231 requests/s."""

    name: str
    arrivals: Arrivals


def workloads(scale: float) -> tuple[Workload, ...]:
    rates = [rate / scale for rate in (20.0, 400.0, 100.0)]
    return (
        Workload(f"quiet: {rates[0]:g}/s", Poisson(rates[0])),
        Workload(f"half: {rates[1]:g}/s", Poisson(rates[1])),
        Workload(f"bursts: {rates[2]:g}/s, and 150 each {scale:g} s", Bursts(rates[2], 150, scale, 0.01 * scale)),
        Workload("64 callers, closed loop", Callers(64)),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one workload on the running system, of each round."""

    workload: Workload
    policy: str
    rounds: Sequence[dict[str, float]]


class Row(msgspec.Struct, frozen=True):
    """One figure of one workload, real and simulated."""

    workload: str
    policy: str
    figure: str
    real: float
    simulated: float

    @property
    def off(self) -> float:
        """The difference of the simulator from the real system, as a fraction of the real figure."""
        return self.simulated / self.real - 1


@click.command(help=__doc__)
@click.option("--policy", "policies", multiple=True, default=("adaptive", "fixed"), show_default=True)
@click.option("--scale", default=5.0, show_default=True, help="Of all times; 5: a full batch takes 260 ms.")
@click.option("--duration", default=20.0, show_default=True, help="Seconds of each load.")
@click.option("--rounds", default=1, show_default=True, help="Of each; the median counts.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows there, too.")
@click.option("--within", default=0.10, show_default=True, help="Exit 1 when a figure is further off.")
def main(
    policies: Sequence[str], scale: float, duration: float, rounds: int, json_path: Path | None, within: float
) -> None:
    measured: list[Measured] = []
    costs: list[Overheads] = []
    for policy in policies:
        real, found = measure(policy, scale, workloads(scale), duration_s=duration, rounds=rounds)
        measured += real
        costs += found
    overheads = pooled(costs)
    rows = [row for each in measured for row in foretell(each, scale, overheads, duration)]
    click.echo(table(rows))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    sys.exit(any(abs(row.off) > within for row in rows))


def measure(
    policy: str, scale: float, chosen: Sequence[Workload], *, duration_s: float, rounds: int
) -> tuple[list[Measured], list[Overheads]]:
    """Start the system with `policy` and run each workload on it, between two calibrations."""
    bunch = Bunch()
    bunch.prepare()
    bunch.open_run()
    try:
        config = _CONFIG.format(
            size=MAX,
            max_wait_ms=round(_MAX_WAIT_MS * scale),
            policy=policy,
            batch_ms=_BATCH_MS * scale,
            item_ms=_ITEM_MS * scale,
        )
        bunch.launch_with(config + MODELS, {"BUNCH_QUEUE_TIMEOUT_MS": "9000"})
        bunch.wait_ready()
        url = f"{bunch.url}/v1/inference"
        with connect(bunch.redis_url()) as redis:
            costs = [calibrate(url, redis)]
            real = [_real(url, policy, each, duration_s, rounds) for each in chosen]
            costs.append(calibrate(url, redis))
        return real, costs
    finally:
        bunch.stop()


def draw(workload: Workload, duration_s: float, round_number: int) -> Arrivals:
    """The load of both: arrivals drawn beforehand, or callers."""
    if isinstance(workload.arrivals, Callers):
        return workload.arrivals
    return Recorded(workload.arrivals.times(duration_s, np.random.default_rng(round_number)).tolist())


def _real(url: str, policy: str, workload: Workload, duration_s: float, rounds: int) -> Measured:
    runs = [drive(url, "sim", draw(workload, duration_s, each), duration_s) for each in range(rounds)]
    return Measured(workload, policy, [_figures(run) for run in runs])


def foretell(real: Measured, scale: float, overheads: Overheads, duration_s: float) -> list[Row]:
    """The rows of a measured load, with the simulator's figures for the same arrivals."""
    simulated = [
        _simulated(draw(real.workload, duration_s, each), real.policy, scale, overheads, duration_s)
        for each in range(len(real.rounds))
    ]
    return [
        Row(
            real.workload.name,
            real.policy,
            name,
            median(figures[name] for figures in real.rounds),
            median(figures[name] for figures in simulated),
        )
        for name in real.rounds[0]
    ]


def _figures(run: Run) -> dict[str, float]:
    summary = summarise(run.answers, run.elapsed_s, TIMEOUT_S)
    assert summary.codes.keys() == {"200"}, summary.codes
    assert summary.p50_ms is not None
    assert summary.p95_ms is not None
    assert summary.mean_batch is not None
    return {"requests/s": summary.rps, "p50 ms": summary.p50_ms, "p95 ms": summary.p95_ms, "batch": summary.mean_batch}


def _simulated(
    arrivals: Arrivals, policy: str, scale: float, overheads: Overheads, duration_s: float
) -> dict[str, float]:
    report = simulate(
        Scenario(
            arrivals=arrivals,
            service=Affine(_BATCH_MS * scale / 1000, _ITEM_MS * scale / 1000),
            policy=make_maker(policy, MAX, _MAX_WAIT_MS * scale),
            duration_s=duration_s,
            overheads=overheads,
        )
    )
    assert report.p50_ms is not None
    assert report.p95_ms is not None
    assert report.mean_batch is not None
    return {
        "requests/s": report.throughput_rps,
        "p50 ms": report.p50_ms,
        "p95 ms": report.p95_ms,
        "batch": report.mean_batch,
    }


def table(rows: Sequence[Row]) -> str:
    """Markdown for docs/benchmarks.md."""
    lines = ["| workload | policy | figure | real | simulated | off |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.workload} | `{row.policy}` | {row.figure} | {row.real:,.1f} | {row.simulated:,.1f} | {row.off:+.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
