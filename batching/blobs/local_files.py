"""Payloads for the processes of one machine: files in shared memory, beside the copies in Redis.

    frontend ──put──▶ /dev/shm/bunch-<user>-<installation>/<id> ──get──▶ worker ──descriptor──▶ executor, which maps it
                              lock: held by all     marks: who sees the folder     spare files, for the next payloads

    file = hash of the payload, as text │ … to the end of the page │ payload

A process that does not see the folder, on another machine or in another container, reads the copy in Redis. Nothing
else has to be compared: a task id is random, so a file by its name is the one that was written here.

Nothing is left of whoever dies. A file has its end as the time of its last change, and whoever uses the folder looks
for files that are past it. Every such process holds a lock, which the kernel takes from it at its death; whoever finds
a folder that nobody holds, of whatever installation, removes it. Folder and files are the user's alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from batching.blobs.spare_files import PREFIX as SPARE
from batching.blobs.spare_files import SPARE_S, SpareFiles, is_there

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it is the user's own, which is checked
_PREFIX = "bunch-"
_LOCK = ".lock"
_MARK = ".sees-"
# The payload can be mapped by itself.
PAYLOAD_AT = os.sysconf("SC_PAGE_SIZE")
_DIGEST_BYTES = 64
# One that is still being written has the time of its last write; this is longer than that takes.
_GRACE_S = 60.0
_COUNT_EVERY_S = 0.25
_SWEEP_EVERY_S = 2.0
# A process renews its mark as often as it sweeps.
_MARK_S = 60.0
_TRIES = 5


class LocalPayload:
    """A payload in shared memory, open for reading. `descriptor` is this object's; the payload begins at `offset`."""

    __slots__ = ("_size", "descriptor")

    offset = PAYLOAD_AT

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        parts: list[bytes] = []
        at, end = PAYLOAD_AT, PAYLOAD_AT + self._size
        # A single call of the kernel reads 2 GiB at most.
        while at < end:
            part = os.pread(self.descriptor, end - at, at)
            if not part:
                raise OSError(errno.EIO, "a payload in shared memory has shrunk")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        os.close(self.descriptor)


class LocalFiles:
    """The folder of an installation, in one process; several threads may use it. Nothing here raises OSError: what
    cannot be in shared memory is in Redis alone.

    Args:
        installation: a text that is the same in all processes that share payloads, for instance its Redis.
        max_bytes: of all files together; half of the file system is never exceeded either.
        parent: the file system in memory.
    """

    def __init__(self, installation: str, max_bytes: int, *, parent: Path = SHARED_MEMORY) -> None:
        name = hashlib.sha256(installation.encode(errors="surrogatepass")).hexdigest()[:16]
        self._parent = parent
        self._path = parent / f"{_PREFIX}{os.geteuid()}-{name}"
        self._max_bytes = max_bytes
        # The folder, and its lock; None while there is none.
        self._folder: int | None = None
        self._lock: int | None = None
        self._spare = SpareFiles(max_bytes // 2)
        self._used_bytes = 0
        self._counted_at = -1.0
        self._mark = ""
        self._swept_at = -1.0

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_open(self) -> bool:
        return self._folder is not None

    def open(self, mark: str = "") -> bool:
        """Use the folder, which is made where there is none; returns False where there can be none. Folders that
        nobody uses are removed. `mark`: the name of this process, for `sees`.
        """
        if not self._max_bytes:
            return False
        remove_unused(self._parent)
        self._mark = _MARK + mark if mark else ""
        for _ in range(_TRIES):
            try:
                if self._enter():
                    return True
            except FileNotFoundError:
                # Somebody has found it unused, a moment ago.
                self._leave()
            except OSError as error:
                self._leave()
                logger.info("payloads do not go through shared memory: %s", error)
                return False
        return False

    def close(self) -> None:
        """Use it no longer; the last one removes it."""
        if self._mark:
            self._unlink(self._mark)
        self._leave()
        remove_unused(self._parent)

    def put(self, name: str, digest: str, value: bytes | memoryview, ttl_s: float) -> bool:
        """Write a payload with its hash; returns False where it must be read from Redis."""
        size = PAYLOAD_AT + len(value)
        if self._folder is None or len(digest) != _DIGEST_BYTES:
            return False
        if self._has(name):
            # It is sent again.
            return True
        folder = self._folder
        spare = self._spare.take(folder, size)
        if spare is not None and size - spare.size > self._room_bytes():
            os.close(spare.descriptor)
            spare = None
        descriptor, written = self._created(name, size) if spare is None else (spare.descriptor, spare.name)
        if descriptor < 0:
            return False
        try:
            os.pwrite(descriptor, digest.encode(), 0)
            _write(descriptor, value)
            os.utime(descriptor, (at := time.time() + ttl_s - _GRACE_S, at))
            if spare is not None:
                os.rename(written, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            logger.info("a payload of %d bytes does not go through shared memory: %s", len(value), error)
            self._unlink(written)
            return False
        finally:
            # Closing it is not enough, while a process is being started that has it open for a moment.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        self._used_bytes += size - (spare.size if spare is not None else 0)
        return True

    def _created(self, name: str, size: int) -> tuple[int, str]:
        """A new file, open, and its name; below 0: there is no room for it."""
        assert self._folder is not None
        if self._room_bytes() < size and not (
            self._spare.clear(self._folder) and self._room_bytes(at_once=True) >= size
        ):
            return -1, name
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(name, flags, 0o600, dir_fd=self._folder)
        except OSError as error:
            self._lost(error)
            return -1, name
        # If it is released meanwhile, nobody else writes to it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor, name

    def _has(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return os.stat(name, dir_fd=self._folder, follow_symlinks=False) is not None
        return False

    def get(self, name: str, digest: str, size: int) -> LocalPayload | None:
        """The payload with this size and hash; None: there is none here."""
        if self._folder is None:
            return None
        with contextlib.suppress(OSError):
            payload = self._opened(name, size)
            if payload is not None and os.pread(payload.descriptor, _DIGEST_BYTES, 0) == digest.encode():
                return payload
        return None

    def release(self, names: Iterable[str]) -> None:
        """Delete payloads; whoever reads one goes on reading it."""
        for name in names:
            if self._folder is not None and not self._spare.keep(self._folder, name):
                self._unlink(name)

    def find(self, name: str) -> tuple[str, LocalPayload] | None:
        """The hash of a payload, and the payload; None: there is none here."""
        with contextlib.suppress(OSError, ValueError):
            about = os.stat(name, dir_fd=self._folder, follow_symlinks=False) if self._folder is not None else None
            if about is not None and about.st_size > PAYLOAD_AT:
                payload = self._opened(name, about.st_size - PAYLOAD_AT)
                if payload is not None:
                    return os.pread(payload.descriptor, _DIGEST_BYTES, 0).decode("ascii"), payload
        return None

    def sweep(self, *, at_once: bool = False) -> None:
        """Delete payloads that are past their end; every few seconds, unless it is to be done `at_once`."""
        if self._folder is None or (not at_once and 0 <= time.monotonic() - self._swept_at < _SWEEP_EVERY_S):
            return
        self._swept_at = time.monotonic()
        now = time.time()
        if self._mark:
            with contextlib.suppress(OSError):
                os.utime(self._mark, dir_fd=self._folder, follow_symlinks=False)
        for name, about in self._files(hidden=True):
            lives_s = _MARK_S if name.startswith(_MARK) else SPARE_S if name.startswith(SPARE) else _GRACE_S
            if name != _LOCK and about.st_mtime + lives_s < now:
                self._unlink(name)

    def used_bytes(self) -> int:
        """The bytes of all files."""
        return sum(about.st_size for _, about in self._files())

    def seen_by(self, marks: Sequence[str]) -> int:
        """The number of processes of these names that see this folder."""
        if self._folder is None:
            return 0
        try:
            here = {each.name for each in self._path.iterdir()}
        except OSError:
            return 0
        return sum(_MARK + each in here for each in marks)

    def _enter(self) -> bool:
        """Open the folder, and hold its lock; False: somebody has removed it meanwhile."""
        with contextlib.suppress(FileExistsError):
            self._path.mkdir(0o700)
        self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        about = os.fstat(self._folder)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise OSError(errno.EPERM, "the folder is not this user's alone", str(self._path))
        self._lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if os.path.samestat((self._path / _LOCK).stat(), os.fstat(self._lock)):
                if self._mark:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                    os.close(os.open(self._mark, flags, 0o600, dir_fd=self._folder))
                return True
        self._leave()
        return False

    def _leave(self) -> None:
        folder, lock, self._folder, self._lock = self._folder, self._lock, None, None
        for each in (folder, lock):
            if each is not None:
                os.close(each)

    def _lost(self, error: OSError) -> None:
        """Somebody has removed the folder, such as the system when its user has logged out: make it anew."""
        if error.errno != errno.ENOENT:
            logger.info("payloads do not go through shared memory: %s", error)
            return
        self._leave()
        self.open(self._mark.removeprefix(_MARK))

    def _room_bytes(self, *, at_once: bool = False) -> int:
        now = time.monotonic()
        if (at_once or not 0 <= now - self._counted_at < _COUNT_EVERY_S) and self._folder is not None:
            self._counted_at = now
            self._used_bytes = self.used_bytes() + self._spare.used_bytes(self._folder)
        try:
            about = os.statvfs(self._path)
        except OSError:
            return 0 if self._folder is None else self._max_bytes - self._used_bytes
        half = about.f_blocks * about.f_frsize // 2
        free = about.f_bavail * about.f_frsize
        return min(self._max_bytes - self._used_bytes, half - self._used_bytes, free)

    def _opened(self, name: str, size: int) -> LocalPayload | None:
        """The file with a payload of this size, open; None: it is something else. Raises OSError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        payload = LocalPayload(os.open(name, flags, dir_fd=self._folder), size)
        about = os.fstat(payload.descriptor)
        # Until whoever looks at it is gone, it is not written anew; and it was not, if it has its name still.
        fcntl.flock(payload.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not is_there(self._folder, name, about):
            return None
        return payload if stat.S_ISREG(about.st_mode) and about.st_size == PAYLOAD_AT + size else None

    def _files(self, *, hidden: bool = False) -> Iterator[tuple[str, os.stat_result]]:
        if self._folder is None:
            return
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if hidden or not entry.name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):
                            yield entry.name, entry.stat(follow_symlinks=False)
        except OSError as error:
            logger.info("shared memory cannot be looked through: %s", error)

    def _unlink(self, name: str) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)


def remove_unused(parent: Path = SHARED_MEMORY) -> None:
    """Remove this user's folders that no process uses: all of theirs have ended, however that was."""
    try:
        found = list(parent.glob(f"{_PREFIX}{os.geteuid()}-*"))
    except OSError:
        return
    for path in found:
        with contextlib.suppress(OSError):
            _remove_unused(path)


def _remove_unused(path: Path) -> None:
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    except BlockingIOError:
        # In use.
        pass
    finally:
        os.close(lock)


def _write(descriptor: int, value: bytes | memoryview) -> None:
    view = memoryview(value)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], PAYLOAD_AT + done)
