"""The switch that keeps a claim loop from claiming for a while: an operator's pause, a drain, a reload of its
executor, or that its model is not loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from config.tiers import TIERS


class ClaimSwitch:
    """The switch of one loop. It uses the loop's condition, so a change here wakes the loop whatever it waits for."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._held = self._away = False
        self.resting = False
        # The ranks of which nothing is claimed.
        self.paused: frozenset[int] = frozenset()

    @property
    def is_shut(self) -> bool:
        return self._held or self._away or len(self.paused) == len(TIERS)

    def hold(self) -> None:
        """Claim nothing until `release`; claimed batches go on."""
        with self._changed:
            self._held = True
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def leave(self) -> None:
        """The executor goes: claim nothing until `come_back`, whoever holds and releases meanwhile."""
        with self._changed:
            self._away = True
            self._changed.notify_all()

    def come_back(self) -> None:
        with self._changed:
            self._away = False
            self._changed.notify_all()

    def pause(self, ranks: frozenset[int]) -> None:
        """Claim nothing of these tiers from the next batch on; an empty set resumes all."""
        with self._changed:
            if ranks != self.paused:
                self.paused = ranks
                self._changed.notify_all()

    def rest(self, is_stopping: Callable[[], bool]) -> None:
        """Called by the loop: wait until the switch is open, or the loop stops."""
        with self._changed:
            self.resting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: is_stopping() or not self.is_shut)
            self.resting = False
