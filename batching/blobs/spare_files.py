"""Files in shared memory that nobody needs any more, for the next payloads: to find fresh pages for a payload takes
longer than to copy it.

    release ──rename──▶ .spare-<number> ──lock──▶ written anew ──rename──▶ the next payload
                            │     └ somebody still looks at it: it is left alone
                            └ too many, or not used for some seconds: deleted

Whoever opens a payload locks it, shared: the open file, which goes on to the executor, and which every mapping of it
holds. So it is free when the last view of it is gone, however whoever had it has ended. Whoever writes locks it for
itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import NamedTuple

PREFIX = ".spare-"
# Below it, fresh pages cost no more than all of this.
LEAST_BYTES = 1024 * 1024
SPARE_S = 5.0
"""The time for which one is kept for the next payload."""
_TRIES = 8


class Spare(NamedTuple):
    """A file to be written anew: open, locked, and cut. `size` is what it had."""

    descriptor: int
    name: str
    size: int


class SpareFiles:
    """Those of one folder, in one process. Nothing here raises OSError. `max_bytes`: of all spare files."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def keep(self, folder: int, name: str) -> bool:
        """Make a payload a spare file; False: it is to be deleted."""
        with contextlib.suppress(OSError):
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode) or about.st_size < LEAST_BYTES:
                return False
            if about.st_size + self.used_bytes(folder) > self._max_bytes:
                return False
            spare = f"{PREFIX}{os.urandom(8).hex()}"
            os.rename(name, spare, src_dir_fd=folder, dst_dir_fd=folder)
            os.utime(spare, dir_fd=folder, follow_symlinks=False)
            return True
        return False

    def take(self, folder: int, size: int) -> Spare | None:
        """A spare file to be written anew; None: there is none."""
        if size < LEAST_BYTES:
            return None
        # The one that has to change least, and that has waited longest: nobody looks at it any more.
        nearest = sorted(_found(folder), key=lambda each: (abs(each[1].st_size - size), each[1].st_mtime))
        for name, _ in nearest[:_TRIES]:
            with contextlib.suppress(OSError):
                taken = _taken(folder, name, size)
                if taken is not None:
                    return taken
        return None

    def clear(self, folder: int) -> bool:
        """Delete them all; returns whether there were any."""
        found = _found(folder)
        for name, _ in found:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        return bool(found)

    def used_bytes(self, folder: int) -> int:
        return sum(about.st_size for _, about in _found(folder))


def _taken(folder: int, name: str, size: int) -> Spare | None:
    """Raises OSError: somebody looks at it, or has taken it before."""
    descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = os.fstat(descriptor)
        # Until somebody else has written it anew, it has this name.
        if is_there(folder, name, about):
            os.ftruncate(descriptor, size)
            return Spare(descriptor, name, about.st_size)
    except BaseException:
        # The lock goes with it.
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_there(folder: int | None, name: str, about: os.stat_result) -> bool:
    """Return whether an open file has this name. Raises OSError."""
    return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), about)


def _found(folder: int) -> list[tuple[str, os.stat_result]]:
    """The spare files."""
    found: list[tuple[str, os.stat_result]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
    return found
