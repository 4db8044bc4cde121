"""Whose requests go into a batch when more wait than it has places: round robin over the callers' keys.

Every key gets one place, then every key a second, until the places are used up (fair queueing: Nagle, 1987; with
requests of equal size deficit round robin comes to the same). A key with few requests is served as if it were alone;
what such keys leave goes to those with many. Nothing is kept from batch to batch: whoever was left out has waited
longest the next time. `batching/lua/fair.lua` is the same rule; tests hold the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def fair_pick(keys: Sequence[str], places: int) -> list[int]:
    """Which of the waiting get a place: positions in `keys`, which is in the order of waiting, the longest first.

    Returns:
        min(places, len(keys)) positions, ascending: within a key always its oldest.
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
