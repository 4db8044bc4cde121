"""What a load test shows while it runs: the last second, the whole so far, and how the rate went."""

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
_SHOWN = 60


class Progress:
    """The picture of a run. Each answer is looked at once, when it is new: sorting all would disturb the load."""

    def __init__(self, slo_s: float, whole_s: float) -> None:
        self._slo_s = slo_s
        self._whole_s = whole_s
        self._seen = 0
        self._at_s = 0.0
        self._rates: list[float] = []
        self._codes: Counter[str] = Counter()

    def picture(self, run: Run, now_s: float) -> RenderableType:
        """Args: `now_s`: seconds since the start of the run."""
        fresh = run.answers[self._seen :]
        passed_s = max(1e-9, now_s - self._at_s)
        self._seen += len(fresh)
        self._at_s = now_s
        self._rates.append(len(fresh) / passed_s)
        self._codes.update(map(code_of, fresh))
        codes = "   ".join(f"{code} {count:,}" for code, count in sorted(self._codes.items()))
        return Group(
            ProgressBar(total=self._whole_s, completed=min(now_s, self._whole_s), width=_SHOWN),
            Text(f"{spark(self._rates[-_SHOWN:])}  {self._rates[-1]:,.0f}/s", style="cyan"),
            self._recent(fresh, passed_s),
            Text(f"{run.waiting:,} waiting for an answer   {codes}"),
        )

    def _recent(self, fresh: Sequence[Answer], passed_s: float) -> Table:
        now = summarise(fresh, passed_s, self._slo_s)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("just now")
        for heading in ("answers/s", "goodput/s", "p50 ms", "p95 ms", "p99 ms"):
            table.add_column(heading, justify="right", min_width=9)
        rows = [("all", now), *(sorted(now.tiers.items()) if len(now.tiers) > 1 else ())]
        for name, row in rows:
            numbers = (row.rps, row.goodput_rps, row.p50_ms, row.p95_ms, row.p99_ms)
            table.add_row(name, *("–" if number is None else f"{number:,.1f}" for number in numbers))
        return table


def spark(values: Sequence[float]) -> str:
    """A line of bars, the highest value the full height."""
    most = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)


async def watch(loop: Coroutine[Any, Any, None], run: Run, whole_s: float, slo_s: float, *, quiet: bool) -> None:
    """Run the load to its end, with the picture on a terminal; `quiet`, or where there is none, without."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await loop
        return
    board = Progress(slo_s, whole_s)
    began = time.perf_counter()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        task = asyncio.create_task(loop)
        while not task.done():
            await asyncio.wait([task], timeout=_REFRESH_S)
            live.update(board.picture(run, time.perf_counter() - began), refresh=True)
        await task
