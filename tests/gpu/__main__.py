"""Run the checks and print one table.

    python -m tests.gpu                          on this machine's GPUs, in less than five minutes
    python -m tests.gpu --rehearse               the same on the CPU, with stand-ins for what only a GPU does
    python -m tests.gpu --only assert --only nvml

Exit 0 when all is well, or when there is no GPU, which it says; 1 when a check has failed, or time is up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from tests.gpu import device as devices
from tests.gpu.checks import CHECKS, Row, Skip, make
from tests.gpu.device import Device
from tests.gpu.rig import Rig, running

# A measurement, in seconds.
SECONDS, REHEARSED_SECONDS = 5.0, 1.0
LIMIT_S, REHEARSAL_LIMIT_S = 290, 1200


class TimeIsUp(BaseException):
    """The whole run has taken too long; not an Exception, so that no check takes it for its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check: its rows, and why it is `skipped` or has `failed`; both empty when it is well."""

    name: str
    rows: Sequence[Row]
    seconds: float
    skipped: str = ""
    failed: str = ""

    @property
    def status(self) -> str:
        return "FAILED" if self.failed else "skipped" if self.skipped else "ok"


def run(rig: Rig, name: str) -> Outcome:
    """Make one check."""
    rows: list[Row] = []
    began = time.monotonic()
    skipped = failed = ""
    try:
        for row in make(rig, name):
            rows += [row]
    except Skip as why:
        skipped = str(why)
    except Exception as error:  # noqa: BLE001 - the other checks are made all the same
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    return Outcome(name, rows, time.monotonic() - began, skipped, failed)


def run_all(device: Device, names: Sequence[str], seconds: float) -> Iterator[Outcome]:
    """Make these checks on one stack, in the order of the table."""
    models = list(dict.fromkeys(model for name in names for model in CHECKS[name].models))
    with running(device, models, seconds) as rig:
        for name in names:
            click.echo(f"{name} …", err=True)
            yield run(rig, name)


def table(outcomes: Sequence[Outcome]) -> str:
    """The table, as Markdown."""
    lines = ["| check | | figure | value |", "|---|---|---|---|"]
    for each in outcomes:
        notes = [Row("skipped", each.skipped)] if each.skipped else [Row("failed", each.failed)] if each.failed else []
        for number, row in enumerate([*each.rows, *notes] or [Row("", "")]):
            head = (f"{each.name} ({each.seconds:.0f} s)", each.status) if number == 0 else ("", "")
            lines.append("| " + " | ".join((*head, row.figure, " ".join(row.value.split())[:300])) + " |")
    return "\n".join(lines)


@click.command(help=__doc__.splitlines()[0])
@click.option("--rehearse", is_flag=True, help="Run on the CPU, with stand-ins for what only a GPU does.")
@click.option("--only", multiple=True, type=click.Choice(list(CHECKS)), help="A check to make; may be repeated.")
def main(rehearse: bool, only: tuple[str, ...]) -> None:
    """Run the checks and print one table."""
    why = "" if rehearse else devices.missing()
    if why:
        click.secho(f"\n*** SKIPPED: nothing was checked on a GPU: {why}; --rehearse runs on the CPU ***\n", err=True)
        return
    device = devices.STAND_IN if rehearse else devices.this_device()
    names = [name for name in CHECKS if not only or name in only]
    # Not SIGALRM, which is the test runner's.
    signal.signal(signal.SIGUSR1, _time_is_up)
    limit = threading.Timer(REHEARSAL_LIMIT_S if rehearse else LIMIT_S, os.kill, (os.getpid(), signal.SIGUSR1))
    limit.daemon = True
    limit.start()
    outcomes: list[Outcome] = []
    began = time.monotonic()
    problem = ""
    try:
        for outcome in run_all(device, names, REHEARSED_SECONDS if rehearse else SECONDS):
            outcomes += [outcome]
    except TimeIsUp:
        problem = "time is up"
    except Exception as error:  # noqa: BLE001 - what was found until then is shown
        traceback.print_exc()
        problem = f"the stack failed: {error}"
    limit.cancel()
    what = "a rehearsal on the CPU, NOT a GPU" if rehearse else f"{', '.join(device.gpus)}"
    click.echo(f"\n{what}; {time.monotonic() - began:.0f} s\n\n{table(outcomes)}")
    missing = [name for name in names if name not in {each.name for each in outcomes}]
    if problem:
        click.secho(f"\n{problem}; not checked: {', '.join(missing) or 'nothing'}", fg="red", err=True)
    sys.exit(bool(problem) or any(each.failed for each in outcomes))


def _time_is_up(*_signal: object) -> None:
    raise TimeIsUp


if __name__ == "__main__":
    main()
