"""Fair queueing: shares the places of a batch between callers' keys by round robin.

Every key gets one place, then every key a second, until the places are used up (fair queueing: Nagle, 1987; with
requests of equal size, deficit round robin gives the same). A key with few requests is served as if it were alone; the
places that such keys leave go to keys with many. There is no state between batches: a request that was left out has
waited longest the next time. `batching/lua/fair.lua` is the same rule; tests prove that both agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def fair_pick(keys: Sequence[str], places: int) -> list[int]:
    """The waiting requests that get a place: indices into `keys`, which is in the order of waiting, longest first.

    Returns:
        min(places, len(keys)) indices, ascending; within a key the oldest requests.
    """
    turns: list[int] = []
    seen: Counter[str] = Counter()
    for key in keys:
        seen[key] += 1
        turns.append(seen[key])
    per_turn = Counter(turns)
    left = places
    last = 0
    while (last := last + 1) in per_turn and per_turn[last] <= left:
        left -= per_turn[last]
    picked = []
    for position, turn in enumerate(turns):
        if turn < last:
            picked.append(position)
        elif turn == last and left > 0:
            picked.append(position)
            left -= 1
    return picked
