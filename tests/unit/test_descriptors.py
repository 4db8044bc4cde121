"""File descriptors: the soft limit raised as far as it may be, and some kept for Redis."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _limits(soft: int, hard: int, wanted: int) -> tuple[int, int]:
    """(soft limit, room for clients) of a process that began with those limits and raised them."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        f"from config.process import descriptors; print(descriptors.raise_limit({wanted}), descriptors.for_clients())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    raised, clients = said.split()
    return int(raised), int(clients)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised"),
    [(256, 1024, 800, 800), (256, 1024, 5000, 1024), (800, 1024, 300, 800), (1024, 1024, 5000, 1024)],
)
def test_the_soft_limit_is_raised_to_what_is_wanted_or_allowed(soft: int, hard: int, wanted: int, raised: int) -> None:
    assert _limits(soft, hard, wanted)[0] == raised


@pytest.mark.parametrize(("limit", "clients"), [(1024, 768), (600, 344), (100, 50)])
def test_some_are_not_for_clients(limit: int, clients: int) -> None:
    assert _limits(limit, limit, limit)[1] == clients
