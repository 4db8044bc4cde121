"""Signs of life for probes: each process of a role writes the time of its last beat into a file.

    state folder/health/<role>-<pid>      locked by its process while that lives; holds the time of its last beat

The kernel releases the lock however a process ends, so a file that can be locked belongs to a dead one. A beat
overwrites the bytes of the one before, which works on a full disk too, and none of it needs Redis.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from config.secrets.private_files import make_private

logger = logging.getLogger(__name__)

FOLDER = "health"
BEAT_EVERY_S = 1.0
# CLOCK_MONOTONIC is the same for all processes of a host, and nobody sets it back.
_WIDTH = 20


class Liveness:
    """Writes the beats of this process. Under gevent its thread is a greenlet, so a blocked loop stops the beats.

    Args:
        works: called before each beat; returns False while the process does not do its work, which then skips the beat.
    """

    def __init__(self, state_dir: Path, role: str, works: Callable[[], bool] = lambda: True) -> None:
        self._path = state_dir / FOLDER / f"{role}-{os.getpid()}"
        self._works = works
        self._fd = -1
        # A beat never goes into another file that has got the number of this one meanwhile.
        self._open = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        """Start beating. If the folder is not writable, log it once and do without probes."""
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            make_private(self._path.parent)
            self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._beat()
            # Renamed only once it is locked: a reader would take an unlocked file for a dead process's.
            new.replace(self._path)
        except OSError as error:
            logger.warning("cannot write the heartbeat file, so probes will not see this process: %s", error)
            self._close()
            return
        self._thread.start()

    def stop(self) -> None:
        """Stop beating. Safe to call twice, and without a start."""
        self._stop.set()
        with self._open:
            if self._fd >= 0:
                self._path.unlink(missing_ok=True)
                self._close()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_EVERY_S):
            if self._works():
                try:
                    self._beat()
                except OSError as error:
                    logger.warning("could not write the heartbeat file: %s", error)

    def _beat(self) -> None:
        with self._open:
            if self._fd >= 0:
                os.pwrite(self._fd, f"{time.monotonic():{_WIDTH}.3f}".encode(), 0)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Beat:
    """One live process of a role, and the seconds since its last beat."""

    pid: int
    silent_s: float


def beats(state_dir: Path, role: str) -> list[Beat]:
    """The beats of the live processes of a role; files of dead ones are removed."""
    found = []
    for path in sorted((state_dir / FOLDER).glob(f"{role}-*")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _is_locked(fd):
                at = float(os.pread(fd, _WIDTH, 0))
                found.append(Beat(int(path.name.rpartition("-")[2]), max(0.0, time.monotonic() - at)))
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return found


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
