"""Limits how often an executor's process is replaced because it computes nothing.

Replacements without a later output indicate a broken model. A few in a row are granted, since each process may have got
a poisoning input first; after that one per pause, and the pause doubles. In between, the outcomes of a batch are
returned as they are: failures, at once and with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from batching.executor import Cause

FRUITLESS = 3
FIRST_PAUSE_S = 10.0
MAX_PAUSE_S = 300.0
# What is said of a process that reports a fault of its own.
FAULTS = {
    Cause.DEVICE: "its device failed, so every later batch would have failed as well",
    Cause.BARREN: "no input succeeded in it any more",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """`fruitless`: replacements since the last output. Times are seconds on any one clock."""

    fruitless: int = 0
    until: float = 0.0

    def grants(self, now: float) -> bool:
        """Return whether another replacement is allowed now."""
        return self.fruitless < FRUITLESS or now >= self.until

    def replaced(self, now: float) -> Patience:
        fruitless = self.fruitless + 1
        # Bounded first, because no float holds the power.
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(16, max(0, fruitless - FRUITLESS)))
        return Patience(fruitless, now + pause_s)
