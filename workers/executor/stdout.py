"""Standard output of an executor's process: a real stream in both log formats.

    text   the worker's own descriptor, line by line
    json   TextIOWrapper ─▶ BufferedWriter ─▶ PrintedLines ─▶ logging, a record for each line

`fileno()` is the descriptor in both: output of programs that the model starts is written there directly, as it is.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from typing import Any

from config.process.streams import keep_talking

# A progress bar ends its line with a carriage return, or never.
LONGEST_LINE = 16_384
_ENDS = re.compile(rb"\r\n|\n|\r")


class PrintedLines(io.RawIOBase):
    """Passes on each line, and lines longer than `LONGEST_LINE` in parts. Its time is linear in the length of the text.

    Args:
        to: the logger that gets the lines, at INFO.
        descriptor: the value of `fileno`.
    """

    def __init__(self, to: logging.Logger, descriptor: int) -> None:
        super().__init__()
        self._to = to
        self._descriptor = descriptor
        self._rest = bytearray()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        *ended, rest = _ENDS.split(bytes(data))
        for line in ended:
            self._add(line)
            self._say(len(self._rest))
        self._add(rest)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._say(len(self._rest))
        super().close()

    def _add(self, part: bytes) -> None:
        self._rest += part
        while len(self._rest) > LONGEST_LINE:
            self._say(LONGEST_LINE)

    def _say(self, size: int) -> None:
        line = bytes(self._rest[:size]).decode(errors="replace")
        del self._rest[:size]
        if line.strip():
            self._to.info("%s", line)


def make_stdout_tell(log_format: str) -> None:
    """Make `sys.stdout` of this process write each line as it ends, whatever its text and its destination."""
    # A worker's log is often a file: without this, prints would come late, or never when the child is killed.
    keep_talking()
    if log_format == "json":
        # The model's prints would not be JSON.
        raw = PrintedLines(logging.getLogger("stdout"), sys.stdout.fileno())
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
