"""Reports a state folder without space, once at the start and once at the end of the trouble. `up` keeps running.

    a write that failed ─┐
                         ├─▶ in trouble ──▶ said ── a write that succeeds, and room ──▶ over, said
    no room (statvfs) ───┘

A start needs space for passwords and configurations, so `required_room` ends it when there is none.

The free space is checked as well as writes: Valkey and the children's logs need space when `up` itself writes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.supervisor.errors import FolderFull
from config.secrets.private_files import make_private

_LOOK_EVERY_S = 1.0
# The folder is full below the first, and has space again above the second; with one limit it would be reported again
# and again.
_FULL_BYTES = 64 * 1024
_ROOM_BYTES = 1024 * 1024
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@contextlib.contextmanager
def required_room(folder: Path) -> Iterator[None]:
    """Run the body only when there is space in `folder`, which is created.

    Raises:
        FolderFull: there is no space, or a write of the body failed for lack of it.
    """
    try:
        make_private(folder)
        if _free_bytes(folder) < _FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise FolderFull(
            f"{folder} is full ({error.strerror}), and nothing was left running; free some space there (`log/*.log.1` "
            "first), or use another folder: BUNCH_STATE_DIR=…"
        ) from error


class Disk:
    """The file system of the state folder. `say` gets the messages for a person."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._failure = ""
        self._told = False
        self._look_at = 0.0

    def write(self, action: Callable[[], None]) -> bool:
        """Run `action`; False when the write failed and has to be tried again."""
        try:
            action()
        except OSError as error:
            self._failure = error.strerror or str(error)
            return False
        self._failure = ""
        return True

    def look(self, now: float) -> None:
        """Report changes."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        free = _free_bytes(self._folder)
        why = self._failure or (os.strerror(errno.ENOSPC) if free < _FULL_BYTES else "")
        if why and not self._told:
            self._told = True
            self._say(
                f"{self._folder} cannot be written to ({why}): processes keep running, but durable writes are "
                "refused and logs have gaps; free some space, no restart is needed"
            )
        elif self._told and not why and free >= _ROOM_BYTES:
            self._told = False
            self._say(f"{self._folder} can be written to again")


def _free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    # Some blocks are reserved for root.
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
