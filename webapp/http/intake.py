"""One memory budget for all requests of a worker that are still arriving.

    hold(a, 3) hold(b, 2) hold(a, 5) ──▶ a: 5, b: 2 ──over the budget──▶ the oldest gives way: 503

Anybody can begin a request before authentication, and stop in the middle of it. So received bytes count, not announced
ones, and the request that began first gives way, since it has had the longest time to finish. Each byte of a request
that comes in pieces counts twice: the allocator wastes about as much again between pieces of all sizes. A large body
has its own memory, which has no more pages than have arrived.
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
    """Pure: sizes in bytes, `total` as they count. A request is held once some of it has arrived."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        # Oldest first.
        self._held: dict[Arriving, int] = {}
        self.total = 0

    def hold(self, who: Arriving, size: int, *, in_place: bool = False) -> None:
        """Set the size of `who` to `size` bytes, `in_place` or in pieces. Raises `CrowdedOutError` if it must
        itself give way.
        """
        if not in_place:
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
        """Remove a request that is complete, or given up."""
        self.total -= self._held.pop(who, 0)
