"""The live display of a load test: the last second, the totals so far, and the rate over time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.loadgen.load import Answer, Run
from cli.loadgen.summary import code_of, summarise

_REFRESH_S = 0.5
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


class Progress:
    """The display of a run. Each answer is read once, when it is new: sorting all of them would disturb the load."""

    def __init__(self, slo_s: float, duration_s: float) -> None:
        self._slo_s = slo_s
        self._duration_s = duration_s
        self._counted = 0
        self._rendered_s = 0.0
        self._rates: list[float] = []
        self._codes: Counter[str] = Counter()

    def render(self, run: Run, now_s: float) -> RenderableType:
        """The display at `now_s`, in seconds since the start of the run."""
        new = run.answers[self._counted :]
        elapsed_s = max(1e-9, now_s - self._rendered_s)
        self._counted += len(new)
        self._rendered_s = now_s
        self._rates.append(len(new) / elapsed_s)
        self._codes.update(map(code_of, new))
        codes = "   ".join(f"{code} {count:,}" for code, count in sorted(self._codes.items()))
        return Group(
            ProgressBar(total=self._duration_s, completed=min(now_s, self._duration_s), width=_WIDTH),
            Text(f"{spark(self._rates[-_WIDTH:])}  {self._rates[-1]:,.0f}/s", style="cyan"),
            self._recent(new, elapsed_s),
            Text(f"{run.waiting:,} waiting for an answer   {codes}"),
        )

    def _recent(self, new: Sequence[Answer], elapsed_s: float) -> Table:
        now = summarise(new, elapsed_s, self._slo_s)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("last interval")
        for heading in ("answers/s", "goodput/s", "p50 ms", "p95 ms", "p99 ms"):
            table.add_column(heading, justify="right", min_width=9)
        rows = [("all", now), *(sorted(now.tiers.items()) if len(now.tiers) > 1 else ())]
        for name, row in rows:
            numbers = (row.rps, row.goodput_rps, row.p50_ms, row.p95_ms, row.p99_ms)
            table.add_row(name, *("–" if number is None else f"{number:,.1f}" for number in numbers))
        return table


def spark(values: Sequence[float]) -> str:
    """A line of bars; the highest value has the full height."""
    highest = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in values)


async def watch(loop: Coroutine[Any, Any, None], run: Run, duration_s: float, slo_s: float, *, quiet: bool) -> None:
    """Run the load to its end, with the display on a terminal; without it when `quiet`, or when there is no
    terminal.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await loop
        return
    progress = Progress(slo_s, duration_s)
    started_at = time.perf_counter()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        task = asyncio.create_task(loop)
        while not task.done():
            await asyncio.wait([task], timeout=_REFRESH_S)
            live.update(progress.render(run, time.perf_counter() - started_at), refresh=True)
        await task
