"""File descriptors: how many this process may have, and how many of them are not for its clients."""

from __future__ import annotations

import contextlib
import resource

RESERVED = 256
"""Connections to Redis (up to 64 from the pool, two of their owners' own), to models asked directly, logs,
listeners."""


def raise_limit(wanted: int) -> int:
    """The soft limit, raised to `wanted` as far as the hard limit allows; call before forking. Never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A sandbox may forbid it; then it stays as it is.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def for_clients() -> int:
    """How many clients a process can have and still reach Redis."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(1, soft - min(RESERVED, soft // 2))
