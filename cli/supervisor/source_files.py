"""The files of a model's folder, for `up --reload`: what they are, and which of them have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

KINDS = (".py", ".json", ".toml")
"""Modules, JSON Schemas, and settings. Weights are not looked at: they are large, and named by a module."""

Snapshot = Mapping[Path, tuple[int, int]]


def snapshot(folder: Path, state_dir: Path) -> Snapshot:
    """The time of change (ns) and the size of each file of `KINDS` below `folder`.

    Hidden folders, virtual environments, caches and `state_dir` are left out.
    """
    return dict(_files(folder, state_dir.resolve()))


def changed(before: Snapshot, after: Snapshot) -> list[Path]:
    """The files that were written, added or removed, in the order of their paths."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class Settled:
    """Changes, once nothing has changed for one look: an editor, or git, writes several files one after the other."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look
        self._told = self._last = look()

    def changes(self) -> list[Path]:
        """The files that have changed since the last change that was returned; empty while it still changes."""
        now = self._look()
        if now != self._last:
            self._last = now
            return []
        found = changed(self._told, now)
        self._told = now
        return found


def _files(folder: Path, state_dir: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = [each for each in folders if _is_source(here / each, state_dir)]
        for name in names:
            if name.endswith(KINDS):
                path = here / name
                try:
                    status = path.stat()
                except OSError:
                    # Removed meanwhile, or a link to nowhere.
                    continue
                yield path, (status.st_mtime_ns, status.st_size)


def _is_source(folder: Path, state_dir: Path) -> bool:
    if folder.name.startswith(".") or folder.name in {"__pycache__", "node_modules"}:
        return False
    return folder.resolve() != state_dir and not (folder / "pyvenv.cfg").exists()
