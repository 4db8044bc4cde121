"""The rate limit of a key: the generic cell rate algorithm (ITU-T I.371, in its "virtual scheduling" form).

The state of a key is one number, the theoretical arrival time: when its next request would be due if all came evenly
spaced. A request may come earlier by up to a burst. Nothing is counted per window, so a window's edge never lets twice
as much through. `tasks/lua/gcra.lua` has the same arithmetic; tests prove that both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Take:
    """The result of a request. `tat_us` is the state to store, unchanged after a refusal; `retry_us` is how long to
    wait then, else 0.
    """

    allowed: bool
    tat_us: float
    retry_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Gcra:
    """A limit of one request per `interval_us`, and up to `burst` at once. Times in microseconds of one clock:
    Redis'.
    """

    interval_us: int
    burst: int

    @classmethod
    def per_minute(cls, rpm: int, burst: int) -> Gcra:
        # Rounded up to whole microseconds, so that the arithmetic is exact, here and in Lua's doubles.
        return cls(-(-MINUTE_US // rpm), burst)

    def take(self, tat_us: float, now_us: float, count: int = 1) -> Take:
        """Try to take `count` requests, all or none; 0 is the state of a new key."""
        due = max(self._known(tat_us, now_us), now_us) + self.interval_us * count
        early = due - self.burst * self.interval_us - now_us
        return Take(allowed=False, tat_us=tat_us, retry_us=early) if early > 0 else Take(allowed=True, tat_us=due)

    def remaining(self, tat_us: float, now_us: float) -> int:
        """The number of requests that would be let through at this time."""
        left = (now_us + self.burst * self.interval_us - max(self._known(tat_us, now_us), now_us)) / self.interval_us
        return max(0, math.floor(left + 1e-6))

    def _known(self, tat_us: float, now_us: float) -> float:
        """The state, or that of a new key if no time before `now_us` can have left it: then the clock has gone back, as
        after a failover to another host. So nobody waits for longer than the burst takes.
        """
        return now_us if tat_us - now_us > (2 * self.burst - 1) * self.interval_us else tat_us
