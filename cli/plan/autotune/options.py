"""The options of `tune --auto`, and the run that they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.base import fail, print_json
from config.settings import Settings

if TYPE_CHECKING:
    from redis import Redis


_Command = TypeVar("_Command", bound=Callable[..., Any])

# Without a default of click, so that it is known which options were given.
_DEFAULTS: dict[str, Any] = {"percentile": 99.0, "record": 60.0, "window": 20.0, "seed": 1}
_OPTIONS = (
    click.option("--auto", is_flag=True, help="Search for the settings that meet an objective."),
    click.option("--slo-ms", type=click.FloatRange(min=1), help="--auto: latency objective (milliseconds)."),
    click.option(
        "--percentile", type=click.FloatRange(50, 99.99), help="--auto: percentile that must meet it.  [default: 99]"
    ),
    click.option(
        "--record",
        type=click.FloatRange(min=1),
        help="--auto: length of the recent arrivals to use (seconds).  [default: 60]",
    ),
    click.option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="--auto: arrivals to use instead, in the format of `simulate --trace`.",
    ),
    click.option(
        "--window",
        type=click.FloatRange(min=1),
        help="--auto: length of the measurements before and after (seconds).  [default: 20]",
    ),
    click.option(
        "--max-batch",
        type=click.IntRange(min=1),
        help="--auto: largest batch size to try.  [default: the file's max_batch_size]",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="--auto: seed of the simulation.  [default: 1]"),
    click.option("--dry-run", is_flag=True, help="--auto: show the settings to try. Change nothing."),
)


def auto_options(command: _Command) -> _Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_auto(auto: bool, changes: Sequence[str], options: Mapping[str, Any]) -> None:
    """Check the options against each other. Raises click.UsageError."""
    if auto:
        if changes:
            raise click.UsageError("--auto chooses the changes itself; do not give any")
        if options["slo_ms"] is None:
            raise click.UsageError("--auto needs an objective: --slo-ms N")
        return
    given = [
        f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and value is not False
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} can only be used with --auto")


def tune_by_itself(settings: Settings, redis: Redis, model: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Run `tune --auto` and print the result: search, try, keep or revert."""
    # It imports the simulator and numpy, which other uses of `tune` do not need.
    from batching.capacity.search import Objective
    from cli.plan.autotune import report
    from cli.plan.autotune.run import Tuner, Wanted

    given = {**_DEFAULTS, **{name: value for name, value in options.items() if value is not None}}
    objective = Objective(given["slo_ms"] / 1000, given["percentile"] / 100)
    wanted = Wanted(
        objective=objective,
        record_s=given["record"],
        window_s=given["window"],
        most=given.get("max_batch"),
        trace=given.get("trace"),
        seed=given["seed"],
        dry_run=given["dry_run"],
    )
    outcome = Tuner(settings, redis, model, wanted, lambda text: click.echo(text, err=True)).run()
    if as_json:
        print_json(report.as_json(outcome, model, objective))
    else:
        report.show(outcome, objective)
    if not outcome.good:
        fail()
