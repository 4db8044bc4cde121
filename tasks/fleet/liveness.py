"""Signs of life: a file that each process of a role beats in, for probes that have no other way to ask it.

    state folder/health/<role>-<pid>      locked by its process for as long as that lives; the time of its last beat

The kernel lets go of the lock however a process ends, so a file that can be locked is a dead one's. A beat overwrites
the bytes of the one before, which a full disk does not prevent, and nothing of it needs Redis.
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
    """The beats of this process; under gevent its thread is a greenlet, and beats for the loop.

    Args:
        works: asked before each beat; False while what the process is for stands still, which is then heard.
    """

    def __init__(self, state_dir: Path, role: str, works: Callable[[], bool] = lambda: True) -> None:
        self._path = state_dir / FOLDER / f"{role}-{os.getpid()}"
        self._works = works
        self._fd = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        """Beat from now on. A folder that cannot be written to is said once; the process does without probes."""
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            make_private(self._path.parent)
            self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._beat()
            # Under its name only once it is locked: whoever looks would take it for a dead one's.
            new.replace(self._path)
        except OSError as error:
            logger.warning("cannot write the heartbeat file, so probes will not see this process: %s", error)
            self._close()
            return
        self._thread.start()

    def stop(self) -> None:
        """Safe to call twice, and without a start."""
        self._stop.set()
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
        if self._fd >= 0:
            os.pwrite(self._fd, f"{time.monotonic():{_WIDTH}.3f}".encode(), 0)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Beat:
    """One living process of a role, and how long ago it last beat."""

    pid: int
    silent_s: float


def beats(state_dir: Path, role: str) -> list[Beat]:
    """Those of the processes that live; what dead ones left is removed."""
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
