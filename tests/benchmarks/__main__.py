"""`python -m tests.benchmarks`: drives Bunch and each rival in turn with wrk, and shows the results side by side."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from tests.benchmarks import report
from tests.benchmarks.bunch_system import ROOT, Bunch
from tests.benchmarks.load import LARGE_BYTES, SMALL_BYTES, ensure_wrk
from tests.benchmarks.measure import Outcome, Plan, measure
from tests.benchmarks.registry import SYSTEMS
from tests.benchmarks.rounds import say_on_stderr
from tests.benchmarks.system import MODELS, Model, System
from tests.benchmarks.venvs import VenvFailedError, pins_of

logger = logging.getLogger("tests.benchmarks")


def _split(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _systems(context: click.Context, parameter: click.Parameter, value: str) -> list[System]:
    names = _split(context, parameter, value) or list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise click.BadParameter(f"{', '.join(unknown)}: known are {', '.join(SYSTEMS)}")
    return [SYSTEMS[name]() for name in names]


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        levels = [int(part) for part in _split(context, parameter, value)]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise click.BadParameter(f"{value!r}: numbers above 0 with commas between them, like 1,64,256")
    return levels


@click.command(help=__doc__)
@click.option("--only", "systems", callback=_systems, default="", help="Systems, with commas; all of them without it.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=8, show_default=True, help="Seconds of each timed run.")
@click.option("--warmup", type=click.IntRange(0), default=2, show_default=True, help="Seconds before each timed run.")
@click.option("--connections", callback=_numbers, default="1,64,256", show_default=True)
@click.option(
    "--payload",
    "payloads",
    callback=_numbers,
    default=f"{SMALL_BYTES},{LARGE_BYTES}",
    show_default=True,
    help="Bytes of an input, and of its output.",
)
@click.option("--model", type=click.Choice([*MODELS, "both"]), default="both", show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Where to; var/bench/<time>.json without it."
)
def main(
    systems: list[System],
    rounds: int,
    duration: int,
    warmup: int,
    connections: list[int],
    payloads: list[int],
    model: str,
    json_path: Path | None,
) -> None:
    say_on_stderr()
    # SIGTERM must stop the systems as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wrk = ensure_wrk()

    models: Sequence[Model] = [name for name in MODELS if model in {name, "both"}]
    plan = Plan(models, connections, rounds, duration, warmup, payloads)
    path = json_path or ROOT / "var" / "bench" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    prepared, unprepared = _prepare(systems)
    versions = {
        system.name: pins_of(system.home or system.name) for system in prepared if not isinstance(system, Bunch)
    }

    def keep(outcome: Outcome) -> None:
        report.write_json(path, report.as_json(plan, outcome, versions))

    outcome = measure(plan, prepared, wrk, keep)
    outcome.failures |= unprepared
    keep(outcome)
    found = report.rows(outcome.samples)
    click.echo(report.tables(found))
    click.echo(f"wrote {path}")
    if report.plot(found, path.with_suffix(".png")):
        click.echo(f"wrote {path.with_suffix('.png')}")
    else:
        click.echo("no plot: matplotlib is not installed")
    for name, why in outcome.failures.items():
        click.echo(f"NOT MEASURED (or not in every round): {name}: {why.splitlines()[0]}", err=True)
    sys.exit(1 if outcome.failures else 0)


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
