"""`python -m tests.benchmarks.beside OTHER`: this checkout beside another one, or beside itself with other settings.

Both stacks are up at the same time, and short windows of load go to one and the other in turn. So a machine that is
slow for a while slows both, which decides about a few per cent where two runs one after the other cannot. OTHER is the
folder of a checkout, whose `.venv` may be a link to this one's; `.` compares settings.

\b
    python -m tests.benchmarks.beside ../before
    python -m tests.benchmarks.beside . --set BUNCH_NATIVE=off
    python -m tests.benchmarks.beside . --model sim50 --line 'policy = "idle"'

The ratio is this one's by the other's, of each pair of windows; processor time is that of a role for each request.
"""  # noqa: D301 - click wants the character itself: it keeps the lines below it as they are

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

# Imported from the checkout that the stack is of, also where this file runs for an older one.
from tests.benchmarks.bunch_system import NOOP, Bunch
from tests.benchmarks.load import ensure_wrk, run_wrk

ROLES = ("web", "worker", "executor", "valkey")
_OTHER_END = Path(__file__)


# As the comparison with other systems has it, also where the checkout is older.
_SIMULATED = """
default_model = "sim50"

[models.sim50]
source = "workers.models.simulated:Simulated"
max_batch_size = 64
options = { batch_ms = 50, item_ms = 0 }
"""
_MODELS = {"noop": NOOP, "sim50": _SIMULATED}


def serve(settings: Mapping[str, str], model: str, line: str) -> None:
    """Run a stack of the current folder's checkout until stdin ends; prints its URL once it is ready."""
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(f"{_MODELS[model]}{line}\n", settings)
        bunch.wait_ready()
        sys.stdout.write(json.dumps({"url": bunch.url}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        bunch.stop()


@dataclass(frozen=True, slots=True)
class Window:
    """One window of load: requests/s, median in ms, and µs of processor time of each role for each request."""

    rps: float
    p50_ms: float
    cpu_us: dict[str, float]


class Stack:
    """A stack of `folder`, in a process of its own that imports from there."""

    def __init__(self, folder: Path, settings: Mapping[str, str], model: str, line: str) -> None:
        self._shape = Bunch.shape
        self._process = subprocess.Popen(
            [str(folder / ".venv/bin/python"), str(_OTHER_END), json.dumps([dict(settings), model, line])],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"the stack of {folder} did not start; its reason is above")
        self._url: str = json.loads(line)["url"]

    def window(self, wrk: str, connections: int, seconds: int) -> Window:
        before = self._cpu_s()
        load = run_wrk(wrk, self._url, self._shape, connections=connections, duration_s=seconds)
        after = self._cpu_s()
        spent = {role: (after[role] - before[role]) / load.requests * 1e6 for role in ROLES}
        return Window(load.rps, load.p50_ms, spent)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=90)

    def _cpu_s(self) -> dict[str, float]:
        spent = dict.fromkeys(ROLES, 0.0)
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                role = _role_of(" ".join(process.cmdline()))
                times = process.cpu_times()
            except psutil.Error:
                continue
            if role:
                spent[role] += times.user + times.system
        return spent


def _role_of(command: str) -> str:
    """The role of a process by its command line, in this version of Bunch and in older ones."""
    marks = {"valkey": "valkey", "gunicorn": "web", "executor": "executor", "main(int": "executor", "child": "executor"}
    found = next((role for mark, role in marks.items() if mark in command), "")
    return found or ("worker" if "celery" in command else "")


def ratios(these: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of the ratios of pairs."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(these, others, strict=True)], n=4)
    return low, middle, high


def compare(stacks: Sequence[Stack], wrk: str, connections: int, windows: int, seconds: int) -> list[str]:
    """The rows for one number of connections."""
    seen: tuple[list[Window], list[Window]] = ([], [])
    for number in range(windows):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            seen[which].append(stacks[which].window(wrk, connections, seconds))
    low, middle, high = ratios(*[[each.rps for each in side] for side in seen])
    this, other = (statistics.median(each.rps for each in side) for side in seen)
    rows = [f"{connections:>5}  {middle:6.3f}  ({low:.3f} to {high:.3f})  {this:8,.0f}/s  {other:8,.0f}/s"]
    for role in ROLES:
        spent = [[each.cpu_us[role] for each in side] for side in seen]
        if not all(map(all, spent)):
            continue
        low, middle, high = ratios(*spent)
        this, other = map(statistics.median, spent)
        rows.append(f"       {middle:6.3f}  ({low:.3f} to {high:.3f})  {this:8.1f} µs  {other:8.1f} µs  {role}")
    return rows


def _pair(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    if wrong := [each for each in values if "=" not in each]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE")
    return dict(each.split("=", 1) for each in values)


@click.command(help=__doc__)
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--set", "settings", multiple=True, callback=_pair, help="A setting of the other one, NAME=VALUE.")
@click.option("--line", default="", help="A line for the other one's model in bunch.toml.")
@click.option("--model", type=click.Choice(list(_MODELS)), default="noop", show_default=True, help="The model of both.")
@click.option("--connections", default="1,64,256", show_default=True, help="Numbers of connections, with commas.")
@click.option("--windows", type=click.IntRange(2), default=10, show_default=True, help="Windows of each one.")
@click.option("--seconds", type=click.IntRange(1), default=2, show_default=True, help="Seconds of a window.")
def main(other: Path, settings: Any, line: str, model: str, connections: str, windows: int, seconds: int) -> None:
    wrk = ensure_wrk()
    stacks = [Stack(Path.cwd(), {}, model, "")]
    try:
        stacks.append(Stack(other.absolute(), settings, model, line))
        for stack in stacks:
            stack.window(wrk, 64, 2)
        click.echo("callers  ratio  (quartiles)           this one      the other")
        for each in connections.split(","):
            for row in compare(stacks, wrk, int(each), windows, seconds):
                click.echo(row)
    finally:
        for stack in stacks:
            stack.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("["):
        serve(*json.loads(sys.argv[1]))
    else:
        main()
