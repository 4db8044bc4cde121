"""`python -m tests.benchmarks.virtual`: the same workloads on the running system and in virtual time, side by side.

The model is `simulated`: 20 ms + 0.5 ms an item, up to 64, all times `--scale`. The larger the scale, the less the
machine's own noise says; at 1 nothing else may run on it. First two loads that are *not* among those compared say
what the machinery costs on this machine: one caller of a model that takes no time (the fixed part of a request's way),
and 64 of them (what each request of a batch adds). Then, for each workload and policy, the real system is driven with
arrivals drawn beforehand, and the simulator is given the very same moments.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np

from batching.simulator import (
    Affine,
    Arrivals,
    Bursts,
    Callers,
    Overheads,
    Poisson,
    Recorded,
    Scenario,
    simulate,
)
from tests.benchmarks.bunch_system import Bunch
from workers.cli.load import Load, Run
from workers.cli.simulate import make_maker
from workers.cli.summary import summarise

_BATCH_MS, _ITEM_MS, _MAX_WAIT_MS, _MAX = 20.0, 0.5, 50.0, 64
_TIMEOUT_S = 9.0
# The server's `hz` is 10.
_BELL_TICK_S = 0.1

_CONFIG = """
default_model = "sim"

[models.sim]
source = "workers.models.simulated:Simulated"
max_batch_size = {size}
max_wait_ms = {max_wait_ms}
policy = "{policy}"
options = {{ batch_ms = {batch_ms}, item_ms = {item_ms} }}

[models.echo]
source = "workers.models.echo:Echo"
max_batch_size = {size}
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


class Row(msgspec.Struct, frozen=True):
    """One figure of one workload, real and simulated."""

    workload: str
    policy: str
    figure: str
    real: float
    simulated: float

    @property
    def off(self) -> float:
        """How far the simulator is from the real system, as a part of the real figure."""
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
    rows: list[Row] = []
    for policy in policies:
        rows += compare(policy, scale, workloads(scale), duration_s=duration, rounds=rounds)
    click.echo(table(rows))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    sys.exit(any(abs(row.off) > within for row in rows))


def compare(policy: str, scale: float, chosen: Sequence[Workload], *, duration_s: float, rounds: int) -> list[Row]:
    """Start the system with `policy`, calibrate, and run each workload on both."""
    bunch = Bunch()
    bunch.prepare()
    bunch.open_run()
    try:
        config = _CONFIG.format(
            size=_MAX,
            max_wait_ms=round(_MAX_WAIT_MS * scale),
            policy=policy,
            batch_ms=_BATCH_MS * scale,
            item_ms=_ITEM_MS * scale,
        )
        bunch.launch_with(config, {"BUNCH_QUEUE_TIMEOUT_MS": "9000"})
        bunch.wait_ready()
        url = f"{bunch.url}/v1/inference"
        overheads = calibrate(url)
        return [row for each in chosen for row in _both(url, policy, scale, each, overheads, duration_s, rounds)]
    finally:
        bunch.stop()


def calibrate(url: str) -> Overheads:
    """What the machinery costs, by a model that takes no time: a lone caller, and 64."""
    _drive(url, "echo", Callers(1), 2.0)
    alone = _drive(url, "echo", Callers(1), 4.0)
    fixed_s = median(each.latency_s for each in alone.answers)
    many = _drive(url, "echo", Callers(64), 5.0)
    # Such that the closed loop of a model without a time of its own comes out as measured.
    item_s = many.elapsed_s / len(many.answers) - fixed_s / 64
    click.echo(f"{fixed_s * 1000:.2f} ms for a request, {item_s * 1e6:.0f} µs for each beside it", err=True)
    # How the fixed part is shared out moves no figure by more than itself: the order is that of the steps' own work.
    return Overheads(
        submit_s=0.3 * fixed_s,
        look_s=0.1 * fixed_s,
        claim_s=0.25 * fixed_s,
        collect_s=0.15 * fixed_s,
        reply_s=0.3 * fixed_s,
        reply_item_s=max(0.0, item_s),
        bell_tick_s=_BELL_TICK_S,
    )


def _both(
    url: str, policy: str, scale: float, workload: Workload, overheads: Overheads, duration_s: float, rounds: int
) -> list[Row]:
    real, simulated = [], []
    for round_number in range(rounds):
        arrivals = workload.arrivals
        if not isinstance(arrivals, Callers):
            times = arrivals.times(duration_s, np.random.default_rng(round_number))
            arrivals = Recorded(times.tolist())
        run = _drive(url, "sim", arrivals, duration_s)
        real.append(_figures(run))
        simulated.append(_simulated(arrivals, policy, scale, overheads, duration_s))
    return [
        Row(
            workload.name,
            policy,
            name,
            median(figures[name] for figures in real),
            median(figures[name] for figures in simulated),
        )
        for name in real[0]
    ]


def _figures(run: Run) -> dict[str, float]:
    summary = summarise(run.answers, run.elapsed_s, _TIMEOUT_S)
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
            policy=make_maker(policy, _MAX, _MAX_WAIT_MS * scale),
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


def _drive(url: str, model: str, arrivals: Arrivals, duration_s: float) -> Run:
    run = Run()

    def body(number: int) -> bytes:
        return msgspec.json.encode({"model": model, "input": f"request {number}"})

    load = Load(url, body, _TIMEOUT_S, run)
    if isinstance(arrivals, Callers):
        asyncio.run(load.closed(arrivals.callers, duration_s=duration_s))
    else:
        assert isinstance(arrivals, Recorded)
        asyncio.run(load.at(arrivals.at_s))
    time.sleep(0.3)
    return run


def table(rows: Sequence[Row]) -> str:
    """As markdown, for docs/capacity.md."""
    lines = ["| workload | policy | figure | real | simulated | off |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.workload} | `{row.policy}` | {row.figure} | {row.real:,.1f} | {row.simulated:,.1f} | {row.off:+.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
