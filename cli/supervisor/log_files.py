"""The children's log files: followed for warnings, and bounded in size.

Children write to their files directly, never through the supervisor: a terminal stopped with Ctrl-S, or a slow
supervisor, must not block a log call of a worker.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024

_LONGEST_LINE = 16_384
_ENDS = re.compile(rb"\r\n|\n|\r")

# Beginnings of records: Celery and gunicorn "[2026-…", Flower "[W 26…", JSON, a date, Valkey "9:M 01 Jan".
_RECORD = re.compile(r"\[|\{|\d{4}-\d\d-\d\d|\d+:[A-Z] ")
_ALARM = re.compile(
    r"(?:^|[\s\[:])(?:WARNING|ERROR|CRITICAL)(?:[\s\]/:]|$)"
    r'|"level(?:name)?": ?"(?:warning|error|critical)"'
    r"|^\[[WEC] \d"
    # (A node of a cluster that was built without TLS says so at its start.)
    r"|^\d+:[A-Z] \d\d \w{3} \d{4} [\d:.]+ # (?!Missing implement of connection type)"
    r"|^Traceback \(most recent call last\)",
    re.IGNORECASE,
)


def rotate(path: Path) -> None:
    """Rename the file of the previous run to `<name>.1`, and begin an empty one; if that fails, go on with the file."""
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".1"))


class LogTail:
    """Follows one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._alarmed = False

    def alarms(self) -> list[str]:
        """New records at warning and above, each with the lines that belong to it (a traceback)."""
        return [line for line in self._new_lines() if self._is_alarm(line)]

    def last(self, count: int) -> list[str]:
        """The newest lines, whether they were returned before or not."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - _READ_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]

    def _is_alarm(self, line: str) -> bool:
        if _ALARM.search(line):
            self._alarmed = True
        elif _RECORD.match(line):
            self._alarmed = False
        return self._alarmed

    def _new_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        if self.path.stat().st_size > MAX_BYTES:
            self._start_over()
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
        self._offset += len(data)
        # A progress bar ends its line with a carriage return, or never: then it is returned in parts.
        *lines, self._rest = _ENDS.split(self._rest + data)
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines]

    def _start_over(self) -> None:
        # The child keeps its descriptor, opened for appending, so the file can be truncated.
        kept = self.path.with_name(self.path.name + ".1")
        try:
            shutil.copyfile(self.path, kept)
        except OSError:
            # There may be no space for two files; then keep one, or the log would keep a full disk full.
            kept.unlink(missing_ok=True)
        with self.path.open("rb+") as file:
            file.truncate(0)
        self._offset, self._rest = 0, b""
