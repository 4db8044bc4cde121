"""The service tiers, highest first; their order is the order in which queues are served."""

from __future__ import annotations

from enum import Enum


class Tier(str, Enum):
    """A caller's class of service. The value is the last part of the queue name."""

    ENTERPRISE = "enterprise"
    PAID = "paid"
    FREE = "free"

    @property
    def rank(self) -> int:
        """0 for the tier that is served first, then 1, 2."""
        return _RANKS[self]


TIERS: tuple[Tier, ...] = tuple(Tier)
_RANKS: dict[Tier, int] = {tier: rank for rank, tier in enumerate(TIERS)}
