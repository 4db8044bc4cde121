"""Shares the places of one batch between the tiers.

Strict preference for the higher tier, except for a guaranteed share of each lower tier that waits, so that none
starves. The share is small at first and grows when the tier's oldest request has *aged*. A share of less than one place
is saved up over batches (deficit round robin: Shreedhar and Varghese, 1996), so that the guarantee holds for a batch
size of one as well. `lua/tiers.lua` is the same rule; tests prove that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Shares of each batch while a higher tier fills it: paid keeps a fifth, free a tenth.
DEFAULT_SHARES: tuple[float, ...] = (0.0, 0.2, 0.1)
# Share of each batch for each lower tier whose oldest request has waited this long; the highest tier keeps the rest.
AGED_SHARE = 0.35
DEFAULT_AGEING_S = 0.5


@dataclass(frozen=True, slots=True)
class Allocation:
    """Places per tier, highest first, and the credits to pass to the next call."""

    takes: tuple[int, ...]
    credits: tuple[float, ...]


def guaranteed(shares: Sequence[float], aged: Sequence[bool]) -> tuple[float, ...]:
    """The shares of the lower tiers, when the oldest requests of some tiers have aged."""
    return tuple(max(share, AGED_SHARE) if old else share for share, old in zip(shares, aged, strict=True))


def allocate(
    depths: Sequence[int], size: int, credits: Sequence[float], shares: Sequence[float] = DEFAULT_SHARES
) -> Allocation:
    """Share `size` places among tiers with `depths` waiting.

    Returns:
        Takes that sum to min(size, sum(depths)), none above its depth. A tier with nothing waiting keeps no credit.
    """
    tiers = range(len(depths))
    if sum(depths) <= size:
        return Allocation(tuple(depths), tuple(credits))
    top = next(i for i in tiers if depths[i] > 0)
    takes = [0] * len(depths)
    saved = [0.0] * len(depths)
    left = size
    for i in tiers:
        if i > top and depths[i] > 0:
            # One more than a batch holds: when two tiers are due at once, the one that has to wait loses nothing.
            saved[i] = min(credits[i] + shares[i] * size, size + 1.0)
            takes[i] = min(math.floor(saved[i] + 1e-9), depths[i], left)
            left -= takes[i]
            saved[i] -= takes[i]
    for i in tiers:
        more = min(left, depths[i] - takes[i])
        takes[i] += more
        left -= more
    return Allocation(tuple(takes), tuple(saved))
