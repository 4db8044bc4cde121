"""The delay before a child that died is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles the delay from `first_s` to `limit_s`; a child that lived for `reset_after_s` starts over."""

    first_s: float = 0.5
    limit_s: float = 10.0
    reset_after_s: float = 30.0

    def failures(self, before: int, lived_s: float) -> int:
        """Deaths in a row, including the one that just happened."""
        return 1 if lived_s >= self.reset_after_s else before + 1

    def delay_s(self, failures: int) -> float:
        """The delay after the `failures`-th death in a row (from 1)."""
        # The exponent is bounded, because a child may die for weeks.
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, 16))
