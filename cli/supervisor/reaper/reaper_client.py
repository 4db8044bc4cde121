"""The supervisor's end of the reaper and of the launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_HERE = Path(__file__).parent
# Isolated and without site-packages: starts in a few milliseconds and cannot be broken by what is installed.
_PYTHON = (sys.executable, "-I", "-S")


class Reaper:
    """Starts processes that cannot outlive this one. Use from the main thread only (see `launch.py`)."""

    def __init__(self) -> None:
        self._pipe = -1
        self._reaper: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, int] = {}

    def _start(self) -> None:
        reading, writing = os.pipe()
        try:
            self._reaper = subprocess.Popen(
                [*_PYTHON, str(_HERE / "reaper.py")],
                stdin=reading,
                # It needs nothing of ours, our secrets least of all.
                env={},
                # A session of its own: what kills the supervisor's whole group must not take the reaper along.
                start_new_session=True,
            )
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._pipe = writing
        for group, number in self._groups.items():
            self._tell(f"+{group} {number}\n")

    def check(self) -> None:
        """Start the reaper, or another one if somebody killed it. Raises OSError: no process is to be had."""
        if self._reaper is not None and self._reaper.poll() is not None:
            self._reaper = None
            os.close(self._pipe)
        if self._reaper is None:
            self._start()

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: Path, reaper_signal: int
    ) -> subprocess.Popen[bytes]:
        """Run `command` as the leader of a new process group, its output appended to `log_file` if that can be.

        Raises:
            OSError: no process, memory or descriptor is to be had.
        """
        self.check()
        launch = [*_PYTHON, str(_HERE / "launch.py"), str(self._pipe), str(os.getpid()), str(reaper_signal)]
        with _appending(log_file) as log:
            process = subprocess.Popen(
                [*launch, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._pipe,),
            )
        self._groups[process.pid] = reaper_signal
        return process

    def forget(self, pid: int) -> None:
        """The group is gone; its number may be given to others from now on."""
        self._groups.pop(pid, None)
        self._tell(f"-{pid}\n")

    def stop(self) -> None:
        if self._reaper is None:
            return
        os.close(self._pipe)
        self._reaper.wait()
        self._reaper = None

    def _tell(self, line: str) -> None:
        # A reaper that was killed is replaced by `check`, and then told of every group.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())


def _appending(log_file: Path) -> IO[bytes]:
    try:
        return log_file.open("ab")
    except OSError:
        # A full disk has no room for a new file's name. What is to be said is lost; the process need not be.
        return Path(os.devnull).open("ab")
