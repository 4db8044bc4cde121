"""Checks of processes for tests."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether it runs; a zombie that nobody has waited for yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
