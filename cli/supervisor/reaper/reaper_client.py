"""The supervisor's side of the reaper and of the launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from batching.blobs import local_files

_HERE = Path(__file__).parent
# Isolated and without site-packages: it starts in a few milliseconds and does not depend on installed packages.
_PYTHON = (sys.executable, "-I", "-S")


class Reaper:
    """Starts processes that cannot outlive this one. Use it from the main thread only (see `launch.py`)."""

    def __init__(self) -> None:
        self._pipe = -1
        self._reaper: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, int] = {}

    def _start(self) -> None:
        reading, writing = os.pipe()
        try:
            self._reaper = subprocess.Popen(
                [*_PYTHON, str(_HERE / "reaper.py"), local_files.__file__],
                stdin=reading,
                # It needs none of our variables, least of all our secrets.
                env={},
                # A session of its own, so that a signal to the supervisor's whole group does not kill the reaper.
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
        """Start the reaper, or restart it if it was killed. Raises OSError: no process can be started."""
        if self._reaper is not None and self._reaper.poll() is not None:
            self._reaper = None
            os.close(self._pipe)
        if self._reaper is None:
            self._start()

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: Path, reaper_signal: int
    ) -> subprocess.Popen[bytes]:
        """Run `command` as the leader of a new process group; its output is appended to `log_file` if possible.

        Raises:
            OSError: no process, memory or descriptor is available.
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
        """The group is gone; its number may be used by others from now on."""
        self._groups.pop(pid, None)
        self._tell(f"-{pid}\n")

    def stop(self) -> None:
        if self._reaper is None:
            return
        os.close(self._pipe)
        self._reaper.wait()
        self._reaper = None

    def _tell(self, line: str) -> None:
        # `check` replaces a reaper that was killed, and announces every group to the new one.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())


def _appending(log_file: Path) -> IO[bytes]:
    try:
        return log_file.open("ab")
    except OSError:
        # A full disk may refuse a new file. The output is lost, but the process runs.
        return Path(os.devnull).open("ab")
