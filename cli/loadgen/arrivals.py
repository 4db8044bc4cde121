"""When the requests of an open loop are due, and whose they are. Calculation only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Drawn once and gone round in: drawing for each request would be the generator's time, not the server's.
_DRAWN = 4096


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Callers that know nothing of each other: Poisson, or with `burst` above 1 as many at once, as seldom.

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
    """One kind of caller: `tier` names it in the figures, `headers` are what it sends besides."""

    tier: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0


def cast(callers: Sequence[Caller], source: random.Random) -> list[int]:
    """Which caller sends the nth request, as places in `callers`, drawn by weight; to be gone round in."""
    if len(callers) == 1:
        return [0]
    return source.choices(range(len(callers)), [each.weight for each in callers], k=_DRAWN)
