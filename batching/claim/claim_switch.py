"""What keeps a claim loop from claiming for a while: an operator's pause, a drain, a reload of its executor."""

from __future__ import annotations

import threading
from collections.abc import Callable

from config.tiers import TIERS


class ClaimSwitch:
    """Of one loop, and under its condition: whatever it waits for, a change here wakes it."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._held = False
        self.resting = False
        # Ranks of which nothing is claimed.
        self.paused: frozenset[int] = frozenset()

    @property
    def is_shut(self) -> bool:
        return self._held or len(self.paused) == len(TIERS)

    def hold(self) -> None:
        """Claim nothing until `release`; what is in hand goes on."""
        with self._changed:
            self._held = True
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def pause(self, ranks: frozenset[int]) -> None:
        """Claim nothing of these tiers from the next batch on; no ranks: of none."""
        with self._changed:
            if ranks != self.paused:
                self.paused = ranks
                self._changed.notify_all()

    def rest(self, is_stopping: Callable[[], bool]) -> None:
        """The loop's own: wait until it is open, or the loop stops."""
        with self._changed:
            self.resting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: is_stopping() or not self.is_shut)
            self.resting = False
