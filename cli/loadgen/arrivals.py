"""Due times and callers of the requests of an open loop. Calculation only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Drawn once and used cyclically: a draw per request would take the time of the generator, not of the server.
_DRAWN = 4096


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Independent callers: Poisson arrivals, or Poisson bursts of `burst` requests.

    The mean rate is `rps` either way.
    """

    rps: float
    burst: int = 1

    def times(self, duration_s: float, source: random.Random) -> Iterator[float]:
        """Seconds from the start, in order, below `duration_s`."""
        at = 0.0
        while (at := at + source.expovariate(self.rps / self.burst)) < duration_s:
            for _ in range(self.burst):
                yield at


@dataclass(frozen=True, slots=True)
class Caller:
    """One kind of caller: `tier` is its name in the figures, `headers` are sent with each request."""

    tier: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0


def cast(callers: Sequence[Caller], source: random.Random) -> list[int]:
    """The callers of successive requests as indices into `callers`, drawn by weight; to be used cyclically."""
    if len(callers) == 1:
        return [0]
    return source.choices(range(len(callers)), [each.weight for each in callers], k=_DRAWN)
