"""The supervisor's end of the guardian and of the launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).parent
# Isolated and without site-packages: starts in a few milliseconds and cannot be broken by what is installed.
_PYTHON = (sys.executable, "-I", "-S")


class Guard:
    """Starts processes that cannot outlive this one. Use from the main thread only (see `launch.py`)."""

    def __init__(self) -> None:
        self._pipe = -1
        self._guardian: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, int] = {}

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        self._guardian = subprocess.Popen(
            [*_PYTHON, str(_HERE / "guardian.py")],
            stdin=reading,
            # It needs nothing of ours, our secrets least of all.
            env={},
            # A session of its own: what kills the supervisor's whole group must not take the guardian along.
            start_new_session=True,
        )
        os.close(reading)
        for group, number in self._groups.items():
            self._tell(f"+{group} {number}\n")

    def check(self) -> None:
        """Start the guardian, or another one if somebody killed it."""
        if self._guardian is None or self._guardian.poll() is not None:
            if self._guardian is not None:
                os.close(self._pipe)
            self._start()

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: Path, guardian_signal: int
    ) -> subprocess.Popen[bytes]:
        """Run `command` as the leader of a new process group, its output appended to `log_file`."""
        self.check()
        launch = [*_PYTHON, str(_HERE / "launch.py"), str(self._pipe), str(os.getpid()), str(guardian_signal)]
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [*launch, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._pipe,),
            )
        self._groups[process.pid] = guardian_signal
        return process

    def forget(self, pid: int) -> None:
        """The group is gone; its number may be given to others from now on."""
        self._groups.pop(pid, None)
        self._tell(f"-{pid}\n")

    def stop(self) -> None:
        if self._guardian is None:
            return
        os.close(self._pipe)
        self._guardian.wait()
        self._guardian = None

    def _tell(self, line: str) -> None:
        # A guardian that was killed is replaced by `check`, and then told of every group.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())
