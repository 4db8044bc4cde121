"""Cores for the load generator alone, where the machine has some to spare, and file descriptors for everybody."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Beside its connections a process has files, pipes, Redis; a proxy has two descriptors for each caller.
SPARE_DESCRIPTORS = 300
_LARGEST_CLIENT = 8


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the systems and those of the load generator: all for both on one or two, else disjoint."""

    system: tuple[int, ...]
    client: tuple[int, ...]

    @property
    def pinned(self) -> bool:
        return self.system != self.client


def split(cores: Sequence[int]) -> Cores:
    """A quarter for the client, one at least and eight at most; two cores are shared, as one alone is too few for
    either.
    """
    ordered = tuple(sorted(cores))
    if len(ordered) <= 2:
        return Cores(ordered, ordered)
    clients = min(_LARGEST_CLIENT, max(1, len(ordered) // 4))
    return Cores(ordered[:-clients], ordered[-clients:])


def of_this_machine() -> Cores:
    """The split of the cores that this process may use (a container's cpuset counts, a quota of CPU time does not)."""
    return split(sorted(os.sched_getaffinity(0)))


@contextlib.contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """Run this thread, and what it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def too_many(connections: int, limit: int) -> str | None:
    """The reason why processes with at most `limit` descriptors cannot have so many connections, or None."""
    needed = connections + SPARE_DESCRIPTORS
    if limit == resource.RLIM_INFINITY or needed <= limit:
        return None
    return (
        f"{connections:,} connections need {needed:,} file descriptors in each process, and `ulimit -Hn` is {limit:,}: "
        "raise it, or ask for fewer connections"
    )
