"""`python -m tests.benchmarks.scaling`: requests/s and processor time by role, with 1, 2, 4, 8 frontends and workers.

The no-op model, so that the machinery is the limit. `busy` is the utilisation of one process of a role; the limit is
the role that is busy nearly all the time, or `cores` where none is. The last line of a payload has the unit costs of
one frontend and one worker, for `MEASURED` in batching/capacity/processes.py, from which docs/capacity.md calculates
larger sizes. Other work on the machine makes a request dearer, never cheaper, so costs are lower quartiles.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import click

from batching.capacity.processes import SIZES, UnitCosts
from config.process import descriptors
from tests.benchmarks import cores
from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.load import Load, ensure_wrk, run_wrk
from tests.benchmarks.roles import cpu_s
from tests.benchmarks.rounds import say_on_stderr
from tests.benchmarks.verify import verify_echo

logger = logging.getLogger("tests.benchmarks.scaling")

# In the order of a request's way; `ops` is beside it.
_ROLES = ("web", "redis", "worker", "executor")
# A process with less than that left to itself is the limit.
_FULL = 0.85


@dataclass(frozen=True, slots=True)
class Window:
    """One load: its figures, and the processor time of each role in seconds."""

    load: Load
    spent_s: dict[str, float]

    def us(self, role: str) -> float:
        """Microseconds a request."""
        return self.spent_s[role] / self.load.requests * 1e6


@dataclass(frozen=True, slots=True)
class Size:
    """Some windows with `count` frontends and as many workers: the median rate, lower quartiles of processor time."""

    count: int
    rps: float
    us: dict[str, float]

    @property
    def busy(self) -> dict[str, float]:
        """The utilisation of one process of each role."""
        return {role: self.rps * us / 1e6 / (1 if role == "redis" else self.count) for role, us in self.us.items()}

    @property
    def limit(self) -> str:
        role = max(self.busy, key=lambda role: self.busy[role])
        return role if self.busy[role] >= _FULL else "cores"


def size_of(count: int, windows: Sequence[Window]) -> Size:
    return Size(
        count,
        median(window.load.rps for window in windows),
        {role: sorted(window.us(role) for window in windows)[len(windows) // 4] for role in _ROLES},
    )


def fitting(usable: int) -> list[int]:
    """The sizes whose busy processes have a core each on so many; the smallest in any case."""
    return [size for size in SIZES if size == 1 or 2 * size + 1 <= usable]


def measure(count: int, wrk: str, connections: int, payload_bytes: int, windows: int, seconds: int) -> Size:
    bunch = Bunch()
    bunch.web_workers = bunch.workers = count
    with bunch.running("noop"):
        verify_echo(bunch.url, bunch.shape)

        def window(duration_s: int) -> Window:
            before = cpu_s(bunch)
            load = run_wrk(
                wrk,
                bunch.url,
                bunch.shape,
                connections=connections * count,
                duration_s=duration_s,
                payload_bytes=payload_bytes,
            )
            after = cpu_s(bunch)
            return Window(load, {role: after[role] - before[role] for role in _ROLES})

        window(2)
        return size_of(count, [window(seconds) for _ in range(windows)])


def table(sizes: Sequence[Size]) -> str:
    """Markdown: a row for each size."""
    head = ["frontends, workers", "requests/s", *(f"{role}: busy, µs a request" for role in _ROLES), "limit"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for size in sizes:
        cells = [f"{size.count}, {size.count}", f"{size.rps:,.0f}"]
        cells += [f"{size.busy[role]:.0%}, {size.us[role]:.1f}" for role in _ROLES]
        lines.append("| " + " | ".join([*cells, size.limit]) + " |")
    return "\n".join(lines)


def unit_costs(size: Size) -> UnitCosts:
    return UnitCosts(*(round(size.us[role], 1) for role in _ROLES))


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[int]:
    parts = (value or "").split(",") if value else []
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r}: numbers above 0 with commas between them, like 1,2,4")
    return [int(part) for part in parts]


@click.command(help=__doc__)
@click.option(
    "--sizes", callback=_numbers, help="Frontends, and as many workers.  [default: those with cores for each]"
)
@click.option(
    "--payload", "payloads", callback=_numbers, default="60,2048", show_default=True, help="Bytes in and out."
)
@click.option("--connections", type=click.IntRange(1), default=256, show_default=True, help="For each frontend.")
@click.option("--windows", type=click.IntRange(1), default=5, show_default=True, help="Loads of each size.")
@click.option("--seconds", type=click.IntRange(1), default=4, show_default=True, help="Seconds of each load.")
def main(sizes: list[int], payloads: list[int], connections: int, windows: int, seconds: int) -> None:
    say_on_stderr()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wrk = ensure_wrk()
    sizes = sizes or fitting(len(cores.of_this_machine().system))
    most = connections * max(sizes)
    if why := cores.too_many(most, descriptors.raise_limit(most + cores.SPARE_DESCRIPTORS)):
        raise click.UsageError(why)
    for payload_bytes in payloads:
        found = []
        for count in sizes:
            found.append(measure(count, wrk, connections, payload_bytes, windows, seconds))
            logger.info("%d bytes, %d: %.0f requests/s, %s", payload_bytes, count, found[-1].rps, found[-1].us)
        click.echo(
            f"no-op model, {payload_bytes:,} bytes in and out, {connections} connections for each frontend, ", nl=False
        )
        click.echo(f"{os.cpu_count()} cores\n\n{table(found)}\n")
        click.echo(f"{payload_bytes}: {unit_costs(found[0])}\n")


if __name__ == "__main__":
    main()
