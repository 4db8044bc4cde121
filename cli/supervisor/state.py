"""Files in the state folder of `up`: `up.lock`, held while it runs; `up.json` for others to read; and `up.wanted`.

Others write `up.wanted`, the wanted number of workers of each pool.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec

from cli.supervisor.errors import AlreadyRunning
from config.secrets.private_files import make_private, write_private

LOCK = "up.lock"
FILE = "up.json"
WANTED = "up.wanted"
_Number = Annotated[int, msgspec.Meta(ge=1)]
# `is_running` holds the lock for a moment, too.
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.05


class ProcessRow(msgspec.Struct, frozen=True):
    """One process of `up`."""

    role: str
    pid: int | None
    state: str
    restarts: int
    name: str = ""
    pool: str = ""


class UpState(msgspec.Struct, frozen=True):
    """The state of an `up`. `redis_url` is the TCP address of an embedded server with its password, so that any client
    can use it; `broker_url` is for remote control, events and ops tasks, the same server unless another is configured;
    `config_file` is the full path of its file, empty where none was named; `mode` is its `BUNCH_MODE`.
    """

    processes: tuple[ProcessRow, ...] = ()
    url: str | None = None
    flower_url: str | None = None
    redis_url: str | None = None
    broker_url: str | None = None
    config_file: str = ""
    mode: Literal["durable", "collocated"] = "durable"


class UpLock:
    """The lock of a state folder, held by its `up`; the kernel releases it however that process ends."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK
        self._fd = -1

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            AlreadyRunning: names the process that holds it.
        """
        make_private(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_LOCK_TRIES):
            if _try_lock(self._fd):
                break
            time.sleep(_LOCK_PAUSE_S)
        else:
            holder = os.read(self._fd, 20).decode().strip() or "?"
            os.close(self._fd)
            raise AlreadyRunning(
                f"another `up` (pid {holder}) uses {self._path.parent}; "
                "stop it, or use another folder: BUNCH_STATE_DIR=…"
            )
        # Only the lock counts; the pid is for the error message.
        with contextlib.suppress(OSError):
            os.truncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def is_running(state_dir: Path) -> bool:
    """Return whether an `up` uses this folder."""
    try:
        fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read(state_dir: Path) -> UpState | None:
    """The last state that the running `up` of this folder wrote; None when none is running."""
    if not is_running(state_dir):
        return None
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=UpState)
    except FileNotFoundError:
        return UpState()


def write(state_dir: Path, state: UpState) -> None:
    write_private(state_dir / FILE, msgspec.json.encode(state))


def want(state_dir: Path, workers: int, pool: str = "") -> None:
    """Ask the `up` of this folder for a number of workers, of a pool; it follows within a moment."""
    write_private(state_dir / WANTED, msgspec.json.encode({**wanted(state_dir), pool: workers}))


def wanted(state_dir: Path) -> dict[str, int]:
    """The numbers of workers that were last asked for, by pool; the one without a name is that without pools."""
    try:
        return msgspec.json.decode((state_dir / WANTED).read_bytes(), type=dict[str, _Number])
    except (FileNotFoundError, ValueError):
        return {}
