"""Passes by cost: a budget, in tokens or whatever a model counts, beside the number of inputs.

A model says what an input costs (`cost(input) -> int`); `max_batch_cost` of bunch.toml is what one call of `predict`
may cost in all. A claimed batch over it is run in several calls. Only the executor's process has the model, so only
there can it be counted, and neither frontend nor worker pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Budget:
    """What one call may cost.

    Args:
        cost: the model's own.
        most: the budget of a call. A single input over it is run alone.
        grouped: put inputs of similar cost into the same call, and count each as the dearest of its call: for models
            that pad to the longest.
    """

    cost: Callable[[Any], int]
    most: int
    grouped: bool = False

    def parts(self, members: Sequence[int], costs: Sequence[int]) -> list[list[int]]:
        """Members in parts of at most `most`, in the order of arrival unless grouped; `costs[n]` is of `members[n]`."""
        pairs = list(zip(members, costs, strict=True))
        if self.grouped:
            # Cheap ones first: they need not wait for the others' calls.
            pairs.sort(key=lambda pair: pair[1])
        parts: list[list[int]] = []
        spent = 0
        for member, cost in pairs:
            # Sorted, so the next is always the dearest.
            after = (len(parts[-1]) + 1) * cost if parts and self.grouped else spent + cost
            if parts and after <= self.most:
                parts[-1].append(member)
                spent = after
            else:
                parts.append([member])
                spent = cost
        return parts


def cut(members: list[int], safe_size: int | None) -> list[list[int]]:
    """Into parts that memory has room for; the last one is run first."""
    if not members:
        return []
    size = safe_size or len(members)
    return [members[start : start + size] for start in range(0, len(members), size)][::-1]
