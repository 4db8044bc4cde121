"""Private files: folders with mode 0700 and files with 0600, whatever the umask is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

# Files in a state folder, and those that `make` puts into `var/`.
_OURS = {"log", "health", "valkey", "flower", "flower.password", "message.key", "valkey.sock", "bench", "tmp"}
_OURS_BEGIN = ("up.", "bunch.db", "demo-")
_UMASK = 0o077


def restrict_umask() -> None:
    """Make files that this process or its children create unreadable for others, from now on."""
    os.umask(_UMASK)


def make_private(folder: Path) -> None:
    """Create a folder for its user alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises OSError, and then the previous file is still there."""
    new = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
        new.replace(path)
    except OSError:
        # Where there is no space, not even half of the file is left.
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def touch_private(path: Path) -> None:
    """Create an empty file if it does not exist. Errors are ignored: opening it reports them."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def kept_secret(path: Path) -> bytes:
    """The content of a secret file in the state folder. The first caller creates it; two at once agree on one.

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
    """Remove the rights of other users that an earlier version left; returns what has to be done by hand, or "".

    A folder that contains other files is not only ours (it may be a home, or /tmp), so its mode is not changed.
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
    # It is gone, or belongs to somebody else.
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if mode & 0o077 and not path.is_symlink():
            path.chmod(mode & 0o700)
