"""The output of `up`: a live table on a terminal, one line per change in a log."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cli.supervisor.supervised_process import State, SupervisedProcess

_STYLES = {State.RUNNING: "green", State.RESTARTING: "red", State.STOPPED: "dim"}
# There may be space again later.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# For one child at a time; the rest is in its log. The last line of a traceback has the error.
_FIRST_LINES, _LAST_OF_MANY = 6, 14
_LAST_LINES = 15


class Lasting:
    """A stream that ignores write errors: a closed reader or a full disk must not end the processes.

    A closed pipe or terminal is given up for good. On a full disk each write is tried; unwritten text is lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # At its exit Python flushes the rest, and a failure of that changes the exit status.
        atexit.register(self._try, stream.flush, for_good=True)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object], *, for_good: bool = False) -> None:
        try:
            action()
        except OSError as error:
            if error.errno in _PASSING and not for_good:
                return
            # Discards the rest of the stream's buffer as well, at the latest when Python exits.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen:
    """Shows the children's progress, and their log records at warning and above."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=cast("IO[str]", Lasting(stream)))
        self._live: Live | None = None
        # The details shown for each child since its state last changed.
        self._shown: dict[str, tuple[State, set[str]]] = {}
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """End the live table; lines follow."""
        if self._live:
            self._live.stop()
            self._live = None

    def line(self, text: str = "", style: str | None = None) -> None:
        # Neither wrapped nor highlighted, because scripts read these lines, too.
        self._console.print(escape(text), style=style, soft_wrap=True, highlight=False)

    def show(self, children: Sequence[SupervisedProcess]) -> None:
        for child in children:
            self._forward(child)
        if self._live:
            self._live.update(self._table(children))
        for child in children:
            state, details = self._shown.get(child.spec.name, (State.WAITING, set()))
            if state is not child.state:
                state, details = self._shown[child.spec.name] = (child.state, set())
            if state is not State.WAITING and child.detail not in details:
                details.add(child.detail)
                if self._live is None:
                    detail = f" ({child.detail})" if child.detail else ""
                    self.line(f"{child.spec.name}: {child.state.value}{detail}", style="dim")

    def died(self, child: SupervisedProcess, why: str) -> None:
        """`Report` of the supervisor."""
        with self._highlighted():
            self.line(f"{child.spec.name} {why}; the end of {child.spec.log_file}:", style="red")
            for text in child.log.last(_LAST_LINES):
                self.line(f"{child.spec.name} | {text}")

    def broken(self, child: SupervisedProcess) -> None:
        """`Report` of the supervisor."""
        # The whole error is in the log record that the child has just written, which was forwarded.
        words = next((line for line in reversed(child.error.splitlines()) if line.strip()), "")
        self.line(f"{child.spec.name}: {child.detail}: {words.strip()}", style="red")

    @contextlib.contextmanager
    def _highlighted(self) -> Iterator[None]:
        self.line()
        yield
        self.line()

    def _forward(self, child: SupervisedProcess) -> None:
        lines = child.log.alarms()
        # Valkey logs its start and stop at warning.
        if child.spec.role == "redis" and child.state is not State.RUNNING:
            return
        for text in shortened(lines, child.spec.log_file):
            self.line(f"{child.spec.name} | {text}", style="yellow")

    def _table(self, children: Sequence[SupervisedProcess]) -> Table:
        table = Table.grid(padding=(0, 2))
        spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int((time.monotonic() - self._since) * 8) % 10]
        for child in children:
            mark = "✓" if child.state is State.RUNNING else spinner
            style = _STYLES.get(child.state, "cyan")
            table.add_row(mark, child.spec.name, child.state.value, escape(child.detail), style=style)
        return table


def shortened(lines: Sequence[str], log_file: Path) -> list[str]:
    """The first and the last of many lines, and where the rest is."""
    left_out = len(lines) - _FIRST_LINES - _LAST_OF_MANY
    if left_out <= 1:
        return list(lines)
    return [*lines[:_FIRST_LINES], f"… {left_out} more lines in {log_file}", *lines[-_LAST_OF_MANY:]]
