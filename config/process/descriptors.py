"""File descriptors: the limit of this process, and how many of them are reserved."""

from __future__ import annotations

import contextlib
import resource

RESERVED = 256
"""Descriptors reserved for connections to Redis (up to 64 of the pool, two of their own), connections to models that
the frontend calls, logs and listeners.
"""


def raise_limit(wanted: int) -> int:
    """Raise the soft limit to `wanted`, as far as the hard limit allows, and return it. It is never lowered. Call it
    before forking.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A sandbox may forbid it; then the limit stays.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def for_clients() -> int:
    """The number of clients that a process can serve and still reach Redis."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(1, soft - min(RESERVED, soft // 2))
