"""Files that are their user's alone: folders 0700, files 0600, whatever the umask is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

# What lies in a state folder, and what `make` puts into `var/`.
_OURS = {"log", "health", "valkey", "flower", "flower.password", "message.key", "valkey.sock", "bench", "tmp"}
_OURS_BEGIN = ("up.", "bunch.db", "demo-")
_UMASK = 0o077


def restrict_umask() -> None:
    """From now on nothing that this process or its children create can be read by others."""
    os.umask(_UMASK)


def make_private(folder: Path) -> None:
    """Make the folder, for its user alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace the file as a whole; nobody sees half of it. Raises OSError, and then the one before is still there."""
    new = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
        new.replace(path)
    except OSError:
        # Not even half of it stays where there is no room.
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def touch_private(path: Path) -> None:
    """An empty file, unless there is one, or none can be made: who opens it says why."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def kept_secret(path: Path) -> bytes:
    """The content of a file of the state folder, which whoever comes first makes; two at once agree on one.

    64 random hexadecimal digits. Raises OSError.
    """
    make_private(path.parent)
    if not path.exists():
        new = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(os.urandom(32).hex().encode())
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
    return path.read_bytes()


def tighten(state_dir: Path) -> str:
    """Take from others what an earlier version let them read; returns what is left to be done by hand, or nothing.

    A folder with other things in it is not only ours: it may be a home, or /tmp.
    """
    entries = list(state_dir.iterdir())
    foreign = sorted(each.name for each in entries if not _is_ours(each.name))
    for entry in entries:
        if _is_ours(entry.name) and entry.name not in {"bench", "tmp"}:
            _restrict(entry)
    if not foreign:
        _restrict_mode(state_dir)
    if state_dir.stat().st_mode & 0o077:
        why = f"it holds {foreign[0]}, which is not Bunch's" if foreign else "it belongs to somebody else"
        return f"{state_dir} is open to other users: {why}; chmod 700 it, or set another BUNCH_STATE_DIR"
    return ""


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_BEGIN)


def _restrict(entry: Path) -> None:
    below: Iterable[Path] = entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else ()
    for path in (entry, *below):
        _restrict_mode(path)


def _restrict_mode(path: Path) -> None:
    # Gone meanwhile, or somebody else's.
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if mode & 0o077 and not path.is_symlink():
            path.chmod(mode & 0o700)
