"""Delays the answers to wrong credentials: longer with each one from the same address.

Pure: addresses and times in, a delay out. Right credentials are never delayed, so a caller is not locked out by a
neighbour behind the same proxy, and a slow refusal tells no more than a fast one.
"""

from __future__ import annotations

from collections import OrderedDict

# People make mistakes too.
FREE_TRIES = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
# How long an attempt counts.
FORGIVEN_AFTER_S = 10.0
MAX_ADDRESSES = 10_000


class Throttle:
    """Remembers the addresses with the latest wrong attempts, up to `MAX_ADDRESSES`."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def pause(self, address: str, now: float) -> float:
        """Count a wrong attempt at `now` (monotonic seconds) and return how long to delay its answer, in seconds."""
        count, then = self._tries.pop(address, (0.0, now))
        count = max(0.0, count - (now - then) / FORGIVEN_AFTER_S) + 1
        self._tries[address] = (count, now)
        if len(self._tries) > MAX_ADDRESSES:
            self._tries.popitem(last=False)
        if count <= FREE_TRIES:
            return 0.0
        # The exponent is bounded: a million attempts would give a number that no float can hold.
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(16.0, count - FREE_TRIES - 1))

    def __len__(self) -> int:
        return len(self._tries)
