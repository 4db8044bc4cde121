"""`python -m tests.benchmarks`: drives Bunch and each rival in turn, and shows the results side by side.

\b
    python -m tests.benchmarks --readme          what README shows: its systems, its loads, in under 15 minutes
    python -m tests.benchmarks                   the same loads, every system
    python -m tests.benchmarks --shapes whole    every model, payload and number of connections: hours
    python -m tests.benchmarks --only bunch,mosec --model noop --payload 60 --connections 64 --rounds 1

With any of --model, --payload and --connections all combinations of them are measured, instead of a set of shapes. An
open loop at half of what the closed loops of a payload gave follows each of them.
"""  # noqa: D301 - click wants the character itself: it keeps the lines below it as they are

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from config.process import descriptors
from tests.benchmarks import cores, plan, report
from tests.benchmarks.bunch_system import ROOT, Bunch
from tests.benchmarks.load import ensure_wrk
from tests.benchmarks.markdown import markdown
from tests.benchmarks.measure import Outcome, measure
from tests.benchmarks.plan import Plan
from tests.benchmarks.registry import README_SYSTEMS, SYSTEMS
from tests.benchmarks.rounds import say_on_stderr
from tests.benchmarks.system import MODELS, Model, System
from tests.benchmarks.venvs import VenvFailedError, pins_of

logger = logging.getLogger("tests.benchmarks")


def _split(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _systems(context: click.Context, parameter: click.Parameter, value: str) -> list[System]:
    names = _split(context, parameter, value)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise click.BadParameter(f"{', '.join(unknown)}: known are {', '.join(SYSTEMS)}")
    return [SYSTEMS[name]() for name in names]


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    if value is None:
        return []
    try:
        levels = [int(part) for part in _split(context, parameter, value)]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise click.BadParameter(f"{value!r}: numbers above 0 with commas between them, like 1,64,256")
    return levels


@click.command(help=__doc__)
@click.option("--readme", is_flag=True, help="README's systems and loads; also prints its tables.")
@click.option("--only", "systems", callback=_systems, default="", help="Systems, with commas.  [default: all]")
@click.option("--shapes", type=click.Choice(["short", "whole"]), default="short", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=3, show_default=True, help="Seconds of each timed run.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Seconds before each timed run.")
@click.option("--connections", callback=_numbers, help="Numbers of connections of the closed loops, with commas.")
@click.option("--payload", "payloads", callback=_numbers, help="Bytes of an input, and of its output, with commas.")
@click.option("--model", type=click.Choice([*MODELS, "both"]), help="The model, or both.")
@click.option("--half-load/--no-half-load", default=True, show_default=True, help="Measure the open loops.")
@click.option("--web-workers", type=click.IntRange(1), default=1, show_default=True, help="Frontends of Bunch.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Workers of Bunch.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Where to; var/bench/<time>.json without it."
)
def main(
    readme: bool,
    systems: list[System],
    shapes: str,
    rounds: int,
    duration: int,
    warmup: int,
    connections: list[int],
    payloads: list[int],
    model: str | None,
    half_load: bool,
    web_workers: int,
    workers: int,
    json_path: Path | None,
) -> None:
    say_on_stderr()
    # SIGTERM must stop the systems as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wrk = ensure_wrk()

    levels: Sequence[plan.Level] = plan.WHOLE if shapes == "whole" else plan.SHORT
    if connections or payloads or model:
        models: Sequence[Model] = [name for name in MODELS if model in {name, "both", None}]
        levels = plan.every(models, payloads or plan.PAYLOADS, connections or plan.CONNECTIONS)
    if not half_load:
        levels = [level for level in levels if level.connections is not None]
    chosen = Plan(levels, rounds, duration, warmup, with_slow=levels is not plan.SHORT)
    limit = descriptors.raise_limit(chosen.most_connections + cores.SPARE_DESCRIPTORS)
    if why := cores.too_many(chosen.most_connections, limit):
        raise click.UsageError(why)

    systems = systems or [SYSTEMS[name]() for name in (README_SYSTEMS if readme else SYSTEMS)]
    for system in systems:
        if isinstance(system, Bunch):
            system.web_workers, system.workers = web_workers, workers
    path = json_path or ROOT / "var" / "bench" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    prepared, unprepared = _prepare(systems)
    versions = {
        system.name: pins_of(system.home or system.name) for system in prepared if not isinstance(system, Bunch)
    }
    _announce(chosen, prepared)

    def keep(outcome: Outcome) -> None:
        fleet = {"web_workers": web_workers, "workers": workers}
        report.write_json(path, report.as_json(chosen, outcome, versions) | {"bunch": fleet})

    outcome = measure(chosen, prepared, wrk, keep)
    outcome.failures |= unprepared
    keep(outcome)
    _show(outcome, path, readme=readme)
    sys.exit(1 if outcome.failures else 0)


def _announce(chosen: Plan, systems: Sequence[System]) -> None:
    machine = cores.of_this_machine()
    where = f"the client on cores {machine.client}" if machine.pinned else "the client on the same cores"
    minutes = chosen.estimate_s([system.batches for system in systems]) / 60
    logger.info(
        "%d systems, %d loads, %d rounds, %s: about %.0f minutes",
        *(len(systems), len(chosen.levels), chosen.rounds, where, minutes),
    )


def _show(outcome: Outcome, path: Path, *, readme: bool) -> None:
    found, open_found = report.rows(outcome.samples), report.open_rows(outcome.open_samples)
    click.echo(report.tables(found, open_found))
    for (system, why), titles in outcome.gaps().items():
        click.echo(f"not measured: {system}: {why} ({'; '.join(titles)})")
    if readme:
        click.echo(f"\n{markdown(found, open_found)}\n")
    click.echo(f"wrote {path}")
    if report.plot(found, path.with_suffix(".png")):
        click.echo(f"wrote {path.with_suffix('.png')}")
    else:
        click.echo("no plot: matplotlib is not installed")
    for name, why in outcome.failures.items():
        click.echo(f"NOT MEASURED (or not in every round): {name}: {why.splitlines()[0]}", err=True)


def _prepare(systems: Sequence[System]) -> tuple[list[System], dict[str, str]]:
    """The systems that can run here, and the reasons why the others cannot."""
    prepared, failures = [], {}
    for system in systems:
        try:
            system.prepare()
        except VenvFailedError as error:
            failures[system.name] = str(error)
            logger.error("%s cannot be installed and is left out: %s", system.name, error)
        else:
            prepared.append(system)
    return prepared, failures


if __name__ == "__main__":
    main()
