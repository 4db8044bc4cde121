"""How long a wrong credential waits for its answer: longer with each one from the same address.

Pure: addresses and times in, a pause out. Right credentials never wait, so nobody is locked out by what a neighbour
behind the same proxy gets wrong; and there is no more to learn from a slow refusal than from a quick one.
"""

from __future__ import annotations

from collections import OrderedDict

# Mistakes are made by people too.
FREE_TRIES = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
# A try is forgotten after so long.
FORGIVEN_AFTER_S = 10.0
MAX_ADDRESSES = 10_000


class Throttle:
    """Remembers the addresses that were wrong last, up to `MAX_ADDRESSES` of them."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def pause(self, address: str, now: float) -> float:
        """Count one wrong try at `now` (monotonic seconds) and say how long its answer is held back."""
        count, then = self._tries.pop(address, (0.0, now))
        count = max(0.0, count - (now - then) / FORGIVEN_AFTER_S) + 1
        self._tries[address] = (count, now)
        if len(self._tries) > MAX_ADDRESSES:
            self._tries.popitem(last=False)
        if count <= FREE_TRIES:
            return 0.0
        # Capped before it is a power: a million tries would be a number without a float.
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(16.0, count - FREE_TRIES - 1))

    def __len__(self) -> int:
        return len(self._tries)
