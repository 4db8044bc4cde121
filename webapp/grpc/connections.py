"""Connections have an age, since only so does a client learn in time that it has to leave.

    connection ─▶ its age ─▶ GOAWAY, while its calls are still served ─▶ the client calls on a new connection

gRPC's own stop cancels what it has received and not yet begun, and what arrives before its GOAWAY does: the caller gets
CANCELLED, which no client sends again by itself (grpc/grpc#41785). At its age a connection is told to go without that,
so a server that stops first waits until each has been.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic

# gRPC varies each age by a tenth, and a GOAWAY needs its time to arrive.
_AGE_OF_LIFE = 0.85
_QUIET_S = 1.0


class Connections:
    """Who calls, and since when. `life_s` is the longest that a connection gets new calls."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        # When the first call came of each, the oldest first.
        self._since: dict[str, float] = {}
        self._newest = self._called = -math.inf

    @property
    def option(self) -> tuple[str, int]:
        """The server's option for it."""
        return "grpc.max_connection_age_ms", max(1, round(self._life_s * _AGE_OF_LIFE * 1000))

    def called(self, peer: str) -> None:
        """Note a call from `peer`, an address with a port."""
        self._called = now = monotonic()
        if peer in self._since:
            return
        while self._since and self._since[oldest := next(iter(self._since))] < now - self._life_s:
            del self._since[oldest]
        self._since[peer] = self._newest = now

    async def leave(self) -> None:
        """Return when nobody calls any more, for a second, or each connection known by now has been told to go."""
        until = monotonic() + self._life_s
        while (left_s := self._end(until) - monotonic()) > 0:  # noqa: ASYNC110 - an event for each call costs more
            await asyncio.sleep(left_s)

    def _end(self, until: float) -> float:
        return min(until, self._newest + self._life_s, self._called + _QUIET_S)
