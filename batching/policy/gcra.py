"""How often one key may ask: the generic cell rate algorithm (ITU-T I.371, in its "virtual scheduling" form).

One number per key says when its next request would be due if all came evenly spaced: the theoretical arrival time. A
request may come before that by up to a burst. Nothing is counted per window, so no window's edge lets twice as much
through. `tasks/lua/gcra.lua` is the same arithmetic; tests hold the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Take:
    """`tat_us` is the state to keep, unchanged after a refusal; `retry_us` how long to wait then, else 0."""

    allowed: bool
    tat_us: float
    retry_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Gcra:
    """One request each `interval_us`, up to `burst` of them at once. Times in microseconds of one clock: Redis'."""

    interval_us: int
    burst: int

    @classmethod
    def per_minute(cls, rpm: int, burst: int) -> Gcra:
        # Rounded up to whole microseconds, so that all of it is exact, here and in Lua's doubles.
        return cls(-(-MINUTE_US // rpm), burst)

    def take(self, tat_us: float, now_us: float) -> Take:
        """Ask for one request; 0 is the state of a key that has never asked."""
        due = max(self._known(tat_us, now_us), now_us) + self.interval_us
        early = due - self.burst * self.interval_us - now_us
        return Take(allowed=False, tat_us=tat_us, retry_us=early) if early > 0 else Take(allowed=True, tat_us=due)

    def remaining(self, tat_us: float, now_us: float) -> int:
        """How many requests would be let through at this moment."""
        left = (now_us + self.burst * self.interval_us - max(self._known(tat_us, now_us), now_us)) / self.interval_us
        return max(0, math.floor(left + 1e-6))

    def _known(self, tat_us: float, now_us: float) -> float:
        """The state, unless no moment before `now_us` can have left it: then the clock has gone back, as a failover to
        another host may have it do, and the key begins anew. So nobody waits for longer than the burst takes.
        """
        return now_us if tat_us - now_us > (2 * self.burst - 1) * self.interval_us else tat_us
