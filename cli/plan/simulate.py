"""`simulate`: runs the policies in virtual time on a given workload."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from batching.policy.admission import Admission, Form
from batching.simulator import (
    AdmissionGate,
    Affine,
    Arrivals,
    Bursts,
    Callers,
    Diurnal,
    Faults,
    Gate,
    Measured,
    OnOff,
    Overheads,
    Poisson,
    Report,
    Scenario,
    Service,
    Shards,
    read_trace,
    simulate,
)
from cli.base import fail, json_option, print_json, print_table
from cli.plan.service_options import service_options, shard_options
from config.policies import POLICIES
from config.settings import ModelSettings, Settings
from config.tiers import TIERS

# Overhead of a request besides the model on a small machine with two cores, Redis included; see docs/benchmarks.md.
LOCAL = Overheads(
    submit_s=0.0010,
    look_s=0.0003,
    claim_s=0.0006,
    # Without a round trip of its own: the calls of a claim go out together.
    visit_s=0.0001,
    collect_s=0.0003,
    reply_s=0.0010,
    reply_item_s=0.00002,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One row: a report, and the name of its policy."""

    policy: str
    report: Report


@click.command(name="simulate")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(POLICIES),
    help="Policy to simulate. May be repeated.  [default: all]",
)
@click.option(
    "--arrivals",
    "process",
    type=click.Choice(["poisson", "bursts", "diurnal", "onoff", "callers"]),
    default="poisson",
    show_default=True,
    help="Arrival process; `callers` is a closed loop.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay the recorded arrivals of this file instead.",
)
@click.option(
    "--rps",
    default=500.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Mean arrival rate (requests per second).",
)
@click.option(
    "--peak-rps",
    type=click.FloatRange(min=0.001),
    help="diurnal, onoff: peak rate (requests per second).  [default: 2 ×, 3 × --rps]",
)
@click.option(
    "--period",
    type=click.FloatRange(min=0.001),
    help="diurnal, onoff: length of a period (seconds).  [default: --duration, 2]",
)
@click.option(
    "--burst-size", default=200, show_default=True, type=click.IntRange(min=1), help="bursts: requests in a burst."
)
@click.option(
    "--burst-every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="bursts: time between bursts (seconds).",
)
@click.option(
    "--concurrency", default=64, show_default=True, type=click.IntRange(min=1), help="callers: number of callers."
)
@click.option(
    "--think-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="callers: pause between two calls (milliseconds).",
)
@click.option(
    "--duration",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Length of the run in virtual time (seconds).",
)
@service_options(batch_ms=20.0, item_ms=0.5, max_wait_ms=50.0)
@click.option(
    "--new-size-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Addition to the first batch of each size, unless it is one of --batch-sizes (milliseconds).",
)
@click.option("--measured", help="Measured batch times by size instead (milliseconds): 1=21,8=24,64=52.")
@click.option(
    "--executors", default=1, show_default=True, type=click.IntRange(min=1), help="Number of executors (GPUs)."
)
@click.option(
    "--tiers", "mix", default="0/100/0", show_default=True, help="Shares of enterprise/paid/free requests (percent)."
)
@click.option(
    "--slo-ms",
    default=500.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Latency objective for goodput (milliseconds).",
)
@click.option(
    "--timeout-ms", type=click.FloatRange(min=0.001), help="Deadline of a request (milliseconds).  [default: none]"
)
@click.option(
    "--queue-timeout-ms",
    type=click.FloatRange(min=0.001),
    help="Maximum time in the queue (milliseconds).  [default: none]",
)
@click.option(
    "--admission",
    type=click.Choice([form.value for form in Form]),
    default="off",
    show_default=True,
    help="Refuse requests by the drain time of the queue, or by its depth.",
)
@click.option(
    "--crash-every",
    type=click.FloatRange(min=0.001),
    help="Mean computing time between crashes of an executor (seconds).  [default: none]",
)
@click.option(
    "--restart",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Time until a crashed executor is back (seconds).",
)
@click.option(
    "--error-rate", default=0.0, show_default=True, type=click.FloatRange(0, 1), help="Share of batches that fail."
)
@shard_options
@click.option("--ideal", is_flag=True, help="Simulate the model alone, without the overhead of a two-core machine.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed. The same seed gives the same result.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot (.png, .svg or .pdf).")
@json_option
def simulate_command(policies: tuple[str, ...], seed: int, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Run the batching policies in virtual time and compare them. Exit 1 when no request was answered.

    Every policy gets the same requests. Goodput counts the answers within --slo-ms and within their deadline.
    """
    if options["shards"] > 1 and options["admission"] != Form.OFF.value:
        raise click.UsageError("--admission needs one shard: each admits for itself")
    started = time.perf_counter()
    most = min([options["max_batch"], *options["batch_sizes"][-1:]])
    runs = [
        Run(name, simulate(_scenario(make_maker(name, most, options["max_wait_ms"]), most, options), seed))
        for name in policies or POLICIES
    ]
    took_s = time.perf_counter() - started
    if plot is not None:
        from cli.plan.plots import compare

        compare({run.policy: run.report for run in runs}, plot)
    if as_json:
        print_json({"seed": seed, "runs": [row(run.policy, run.report) for run in runs]})
    else:
        show(runs)
        requests = sum(run.report.requests for run in runs)
        click.echo(
            f"\n{requests:,} requests in {took_s:.2f} s, latencies in ms; seed {seed}"
            + (f"; see {plot}" if plot else "")
        )
    if not any(run.report.answered for run in runs):
        fail()


def make_maker(name: str, max_batch_size: int, max_wait_ms: float) -> Callable[[], Any]:
    """A factory of policies for one executor, made exactly as a worker makes them."""
    from batching.policy_settings import make_policy

    settings = ModelSettings(
        name=name,
        source="simulated:Simulated",
        policy=name,
        max_batch_size=max_batch_size,
        max_wait_ms=round(max_wait_ms),
    )
    return lambda: make_policy(settings)


def row(policy: str, report: Report) -> dict[str, Any]:
    """One entry of `runs` in `--json`."""
    return {
        "name": report.name,
        "policy": policy,
        "offered_rps": round(report.offered_rps, 2),
        "throughput_rps": round(report.throughput_rps, 2),
        "goodput_rps": round(report.goodput_rps, 2),
        "p50_ms": _ms(report.p50_ms),
        "p95_ms": _ms(report.p95_ms),
        "p99_ms": _ms(report.p99_ms),
        "p99_9_ms": _ms(report.p99_9_ms),
        "mean_batch": _ms(report.mean_batch),
        "utilisation": round(report.utilisation, 4),
        "refused": report.refused,
        "requests": report.requests,
        "expired": report.expired,
        "failed": report.failed,
        "unanswered": report.unanswered,
    }


def show(runs: list[Run]) -> None:
    """Print the runs as a table."""
    lost: list[tuple[str, Callable[[Run], object]]] = [
        (word, _count_of(word))
        for word in ("expired", "failed", "unanswered")
        if any(getattr(run.report, word) for run in runs)
    ]
    print_table(
        runs,
        [
            ("policy", lambda run: run.policy),
            ("in /s", lambda run: round(run.report.offered_rps)),
            ("out /s", lambda run: round(run.report.throughput_rps)),
            ("good /s", lambda run: round(run.report.goodput_rps)),
            ("p50", lambda run: _or_dash(run.report.p50_ms)),
            ("p95", lambda run: _or_dash(run.report.p95_ms)),
            ("p99", lambda run: _or_dash(run.report.p99_ms)),
            ("p99.9", lambda run: _or_dash(run.report.p99_9_ms)),
            ("batch", lambda run: _or_dash(run.report.mean_batch)),
            ("busy %", lambda run: round(run.report.utilisation * 100)),
            *lost,
        ],
        empty="",
    )
    for run in runs:
        if any(run.report.refused.values()):
            by_tier = ", ".join(f"{tier.value} {run.report.refused[tier.value]:,}" for tier in TIERS)
            click.echo(f"{run.policy} refused: {by_tier}")


def _scenario(policy: Callable[[], Any], most: int, options: dict[str, Any]) -> Scenario:
    deadline_s = (options["timeout_ms"] or math.inf) / 1000
    return Scenario(
        name=options["trace"].name if options["trace"] else options["process"],
        arrivals=_arrivals(options),
        service=_service(options),
        policy=policy,
        duration_s=options["duration"],
        max_batch_size=most,
        batch_sizes=options["batch_sizes"],
        new_size_s=options["new_size_ms"] / 1000,
        executors=options["executors"],
        shards=Shards(options["shards"], options["reach"] or options["shards"], options["owners"]),
        tiers=parse_mix(options["mix"]),
        slo_s=options["slo_ms"] / 1000,
        deadlines_s=((deadline_s, deadline_s),) * len(TIERS),
        queue_timeout_s=(options["queue_timeout_ms"] or math.inf) / 1000,
        gate=gate_of(Settings(admission=options["admission"])),
        overheads=Overheads() if options["ideal"] else LOCAL,
        faults=Faults(
            crash_every_s=options["crash_every"] or math.inf,
            restart_s=options["restart"],
            error_rate=options["error_rate"],
        ),
    )


def gate_of(settings: Settings) -> Callable[[Scenario], Gate] | None:
    """The frontend's admission rule, with its thresholds; None without admission."""
    form = Form(settings.admission)
    if form is Form.OFF:
        return None
    thresholds = tuple(
        math.inf if each is None else each / 1000 if form is Form.DRAIN else each for each in settings.shed_thresholds()
    )
    return partial(AdmissionGate, Admission(form=form, thresholds=thresholds))


def _arrivals(options: dict[str, Any]) -> Arrivals:
    rps = options["rps"]
    peak = options["peak_rps"] or 3 * rps
    if options["trace"]:
        try:
            return read_trace(options["trace"])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--trace") from error
    match options["process"]:
        case "bursts":
            return Bursts(rps, options["burst_size"], options["burst_every"])
        case "diurnal":
            if peak > 2 * rps:
                peak = 2 * rps if options["peak_rps"] is None else peak
            if peak > 2 * rps or peak < rps:
                raise click.BadParameter("must be between --rps and twice --rps", param_hint="--peak-rps")
            return Diurnal(2 * rps - peak, peak, options["period"] or options["duration"])
        case "onoff":
            # On and off times that give the requested mean rate.
            period_s = options["period"] or 2.0
            on_s = period_s * min(1.0, rps / peak)
            return OnOff(peak, 0.0, on_s, max(1e-9, period_s - on_s))
        case "callers":
            return Callers(options["concurrency"], options["think_ms"] / 1000)
    return Poisson(rps)


def _service(options: dict[str, Any]) -> Service:
    if not options["measured"]:
        if not options["batch_ms"] + options["item_ms"]:
            raise click.BadParameter(
                "give --batch-ms or --item-ms above 0: a batch takes some time", param_hint="--batch-ms"
            )
        return Affine(options["batch_ms"] / 1000, options["item_ms"] / 1000, options["jitter"])
    try:
        pairs = [pair.split("=") for pair in options["measured"].split(",")]
        return Measured({int(size): float(ms) / 1000 for size, ms in pairs}, options["jitter"])
    except ValueError as error:
        raise click.BadParameter(f"must be like 1=21,8=24,64=52: {error}", param_hint="--measured") from error


def parse_mix(text: str) -> tuple[float, float, float]:
    """Percent per tier, highest first, as given on the command line."""
    try:
        parts = [float(part) for part in text.split("/")]
    except ValueError:
        parts = []
    if len(parts) != len(TIERS) or min(parts) < 0 or not sum(parts) > 0:
        raise click.BadParameter(
            "must be three numbers for enterprise/paid/free, such as 5/25/70", param_hint="--tiers"
        )
    total = sum(parts)
    return (parts[0] / total, parts[1] / total, parts[2] / total)


def _count_of(word: str) -> Callable[[Run], object]:
    return lambda run: getattr(run.report, word)


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _or_dash(value: float | None) -> float | str:
    if value is None:
        return "–"
    return value if value < 1000 else round(value)
