"""The result of `tune --auto`, as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from batching.capacity.ab_verdict import Watched
from batching.capacity.search import Objective
from batching.capacity.tuner import Trial
from cli.base import print_table
from cli.plan.autotune.run import Outcome, settings_of


def as_json(outcome: Outcome, model: str, objective: Objective) -> dict[str, Any]:
    """The object that `--json` prints."""
    found, line = outcome.found, outcome.service.line
    return {
        "model": model,
        "slo_ms": objective.slo_s * 1000,
        "percentile": objective.fraction * 100,
        "outcome": outcome.state,
        "why": outcome.why,
        "changes": outcome.changes,
        "recorded": {
            "requests": len(outcome.recorded.at_s),
            "seconds": round(max(outcome.recorded.at_s), 3),
            "from": outcome.source,
        },
        "service": {
            "batch_ms": round(line.batch_s * 1000, 3),
            "item_ms": round(line.item_s * 1000, 4),
            "jitter": round(line.jitter, 3),
            "executors": outcome.service.executors,
            "from": outcome.service.source,
        },
        "tried": found.tried,
        "simulated_requests": found.requests,
        "simulated": {"now": _simulated(found.current), "best": _simulated(found.best)},
        "live": {name: _live(each) for name, each in (("before", outcome.before), ("after", outcome.after)) if each},
    }


def _simulated(trial: Trial) -> dict[str, Any]:
    report = trial.report
    return {
        "settings": settings_of(trial.candidate),
        "holds": trial.holds,
        "attainment": round(trial.attainment, 4),
        "goodput_rps": round(report.goodput_rps, 2),
        **{name: _ms(getattr(report, name)) for name in ("p50_ms", "p95_ms", "p99_ms")},
        "mean_batch": _ms(report.mean_batch),
        "utilisation": round(report.utilisation, 3),
    }


def _live(seen: Watched) -> dict[str, Any]:
    return {
        "seconds": round(seen.seconds, 1),
        "requests": seen.asked,
        "rps": round(seen.rps, 2),
        "attainment": round(seen.attainment, 4),
        "goodput_rps": round(seen.goodput_rps, 2),
        **{f"p{percent}_ms": _ms(seen.at_ms(percent / 100)) for percent in (50, 95, 99)},
        "mean_batch": _ms(seen.mean_batch),
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def show(outcome: Outcome, objective: Objective) -> None:
    """Print the result: its basis, the current and the best settings side by side, and the change."""
    found, service, line = outcome.found, outcome.service, outcome.service.line
    span_s = max(outcome.recorded.at_s)
    click.echo(
        f"arrivals  {len(outcome.recorded.at_s):,} in {span_s:.0f} s, from {outcome.source}\n"
        f"service   {line.batch_s * 1000:.2f} ms + {line.item_s * 1000:.3f} ms per item ± {line.jitter:.0%}, "
        f"{service.source}"
    )
    if not service.varied:
        click.echo("          all batches had about the same size, so no other sizes were tried")
    click.echo(f"tried     {found.tried} settings, {found.requests:,} requests in virtual time\n")
    click.echo(f"now       {found.current.candidate}\nbest      {found.best.candidate}\n")
    rows = [("now, simulated", _simulated(found.current)), ("best, simulated", _simulated(found.best))]
    live = (("before, live", outcome.before), ("after, live", outcome.after))
    rows += [(name, _live(each)) for name, each in live if each is not None]
    print_table(
        rows,
        [
            ("", lambda row: row[0]),
            (f"in {objective.slo_s * 1000:g} ms %", lambda row: row[1]["attainment"] * 100),
            ("good /s", lambda row: row[1]["goodput_rps"]),
            *((name, _column(f"{name}_ms")) for name in ("p50", "p95", "p99")),
            ("batch", lambda row: row[1]["mean_batch"]),
        ],
        empty="",
    )
    if outcome.changes:
        changed = " ".join(f"{key}={value}" for key, value in outcome.changes.items())
        click.echo(f"\n{outcome.state}: {changed}\n{outcome.why}")
    else:
        click.echo(f"\n{outcome.state}: {outcome.why}")


def _column(key: str) -> Callable[[Any], object]:
    return lambda row: "–" if row[1][key] is None else row[1][key]
