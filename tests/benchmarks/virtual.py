"""`python -m tests.benchmarks.virtual`: the same workloads on the running system and in virtual time, side by side.

The model is `simulated`: 20 ms + 0.5 ms an item, up to 64, all times `--scale`. The larger the scale, the less the
machine's own noise says; at 1 nothing else may run on it. First three loads that are *not* among those compared say
what the machinery costs on this machine: now and then a request for a model that takes no time (the fixed part of a
request's way), and batches of 64 of another model, sent at once and by callers who wait (what each request of a batch
adds to each stretch of the way). Then, for each workload and policy, the real system is driven with arrivals drawn
beforehand, and the simulator is given the very same moments.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np
from redis import Redis

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
from config.redis import connect
from tasks.journal import BatchRecord, Journal
from tests.benchmarks.bunch_system import Bunch
from workers.cli.load import Answer, Load, Run
from workers.cli.simulate import make_maker
from workers.cli.summary import summarise

_BATCH_MS, _ITEM_MS, _MAX_WAIT_MS, _MAX = 20.0, 0.5, 50.0, 64
_TIMEOUT_S = 9.0
# Of the model by which batches of 64 are measured.
_FLAT_MS = 50.0

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

[models.flat]
source = "workers.models.simulated:Simulated"
max_batch_size = {size}
max_wait_ms = 2000
policy = "fixed"
options = {{ batch_ms = {flat_ms}, item_ms = 0 }}
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
            flat_ms=_FLAT_MS,
        )
        bunch.launch_with(config, {"BUNCH_QUEUE_TIMEOUT_MS": "9000"})
        bunch.wait_ready()
        url = f"{bunch.url}/v1/inference"
        with connect(bunch.redis_url()) as redis:
            overheads = calibrate(url, redis)
        return [row for each in chosen for row in _both(url, policy, scale, each, overheads, duration_s, rounds)]
    finally:
        bunch.stop()


def calibrate(url: str, redis: Redis) -> Overheads:
    """What the machinery costs: a lone request's way, and what each of 64 in a batch adds to each stretch of it."""
    _drive(url, "echo", Callers(1), 2.0)
    # Seldom, so that everything has gone to sleep between two, as it does under the loads compared.
    seldom = _drive(url, "echo", Recorded(np.arange(0, 5, 0.07).tolist()), 5.0)
    fixed_s = median(each.latency_s for each in seldom.answers)
    once = _drive(url, "flat", Recorded(np.repeat(np.arange(0, 4, 0.3), _MAX).tolist()), 4.0)
    # The first of a batch waits in the queue for the last.
    in_s = median(max(map(_queue_s, batch)) for batch in _batches(once)) / _MAX
    first_s = median(min(each.latency_s for each in batch) for batch in _batches(once))
    both_s = max(0.0, (first_s - _FLAT_MS / 1000 - fixed_s) / _MAX - in_s)
    # What of it is after the model, the workers have written down.
    stored_ms = [each.reply_ms for each in Journal(redis).records() if len(each.members) == _MAX]
    finish_s = min(both_s, median(stored_ms) / 1000 / _MAX)
    loop = _drive(url, "flat", Callers(_MAX), 8.0)
    ways = ways_back(_records(redis, loop), in_s, finish_s)
    out_s = median(each for _, each in ways)
    ends = sorted(min(each.finished_s for each in batch) for batch in _batches(loop) if len(batch) == _MAX)
    cycle_s = median(after - before for before, after in itertools.pairwise(ends))
    # What is left of a turn of the loop; and no more than callers who do not wait for each other have shown.
    claim_s = min(both_s - finish_s, max(0.0, (cycle_s - _FLAT_MS / 1000 - fixed_s) / _MAX - in_s - finish_s - out_s))
    each_us = " + ".join(f"{each * 1e6:.0f}" for each in (in_s, claim_s, finish_s, out_s))
    late_ms = np.quantile([finish + out for finish, out in ways], [0.05, 0.95]) * _MAX * 1000
    click.echo(
        f"{fixed_s * 1000:.2f} ms for a request, and {each_us} µs for each of a batch; "
        f"{len(ways)} batches of {_MAX} were answered within {late_ms[0]:.1f} to {late_ms[1]:.1f} ms",
        err=True,
    )
    # How the fixed part is shared out moves no figure by more than itself: the order is that of the steps' own work.
    return Overheads(
        submit_s=0.3 * fixed_s,
        submit_item_s=in_s,
        look_s=0.1 * fixed_s,
        claim_s=0.25 * fixed_s,
        claim_item_s=claim_s,
        collect_s=0.15 * fixed_s,
        reply_s=0.3 * fixed_s,
        finish_item_s=finish_s,
        reply_item_s=out_s,
        ways_back=tuple(ways),
    )


def ways_back(records: Sequence[BatchRecord], in_s: float, finish_s: float) -> list[tuple[float, float]]:
    """How the callers of each batch came back, from when each of them was in the queue again: `Overheads.ways_back`.

    Args:
        records: batches of a closed loop, in order; each is made of all who were in the one before it.
        in_s: what a request costs until it is in the queue, which is a part of the way of each.
        finish_s: what it usually costs until its batch is stored.
    """
    first_s, apart_s = [], []
    for before, after in itertools.pairwise(records):
        came_ms = [each.enqueued_ms for each in after.members]
        first_s.append((min(came_ms) - before.claimed_ms - before.wait_ms - before.turn_ms) / 1000)
        apart_s.append((max(came_ms) - min(came_ms)) / 1000 / (len(came_ms) - 1))
    usual_s = median(first_s)
    return [
        (max(0.0, finish_s + (first - usual_s) / _MAX), max(0.0, apart - in_s))
        for first, apart in zip(first_s, apart_s, strict=True)
    ]


def _records(redis: Redis, run: Run) -> list[BatchRecord]:
    """What the workers have written down of the full batches of a run, in order."""
    ids = {each.batch_id for each in run.answers}
    found = [each for each in Journal(redis).records() if each.id in ids and len(each.members) == _MAX]
    return sorted(found, key=lambda each: each.claimed_ms)


def _queue_s(answer: Answer) -> float:
    return float(msgspec.json.decode(answer.body)["metadata"]["queue_ms"]) / 1000


def _batches(run: Run) -> list[list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for each in run.answers:
        found.setdefault(each.batch_id, []).append(each)
    return list(found.values())


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
    run = Run(keep_bodies=model == "flat")

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
