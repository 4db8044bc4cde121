"""The memory of requests that have begun to arrive and are not whole: one budget over all connections of a worker.

    hold(a, 3) hold(b, 2) hold(a, 5) ──▶ a: 5, b: 2 ──over the budget──▶ whoever began first gives way: 503

Anybody can begin a request, before it is known who that is, and stop in the middle of it. So what counts is what has
arrived, not what was announced; and who began first has had the longest to finish. Each byte counts twice, since what
the allocator loses between pieces of all sizes comes to as much again.
"""

from __future__ import annotations

from typing import Protocol

from webapp.http.errors import CrowdedOutError

COUNTED = 2
CROWDED_OUT = "The server ran out of memory for requests that are still arriving; try again."


class Arriving(Protocol):
    def crowd_out(self) -> None:
        """Give up the request; called from another connection's greenlet, so not at once."""


class Intake:
    """Pure: sizes in bytes, `total` as they count. Nobody is held before something has arrived."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        # Oldest first.
        self._held: dict[Arriving, int] = {}
        self.total = 0

    def hold(self, who: Arriving, size: int) -> None:
        """`who` has `size` bytes by now. Raises `CrowdedOutError` when it is itself the one to give way."""
        size *= COUNTED
        self.total += size - self._held.get(who, 0)
        self._held[who] = size
        while self.total > self._limit:
            oldest = next(iter(self._held))
            self.release(oldest)
            if oldest is who:
                raise CrowdedOutError(CROWDED_OUT)
            oldest.crowd_out()

    def release(self, who: Arriving) -> None:
        """It is whole, or given up."""
        self.total -= self._held.pop(who, 0)
