"""A state folder that takes nothing more: told once, and once more when it is over. `up` goes on meanwhile.

    a write that failed ─┐
                         ├─▶ in trouble ──▶ said ── a write that succeeds, and room ──▶ over, said
    no room (statvfs) ───┘

A start is another matter: it needs room for passwords and configurations, and `required_room` ends it without.

The folder is asked as well as tried: Valkey and the children's logs need room when `up` itself has nothing to write.
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
# Below the first it is full; above the second there is room again: in between it would be told again and again.
_FULL_BYTES = 64 * 1024
_ROOM_BYTES = 1024 * 1024
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@contextlib.contextmanager
def required_room(folder: Path) -> Iterator[None]:
    """Run the body only with room in `folder`, which is made.

    Raises:
        FolderFull: there is none, or a write of the body found none.
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
    """The file system of the state folder. `say` is told what a person should know."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._failure = ""
        self._told = False
        self._look_at = 0.0

    def write(self, action: Callable[[], None]) -> bool:
        """Do it; False when the folder did not take it, to be tried again."""
        try:
            action()
        except OSError as error:
            self._failure = error.strerror or str(error)
            return False
        self._failure = ""
        return True

    def look(self, now: float) -> None:
        """Say what has changed."""
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
    # Some blocks are kept for root.
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
