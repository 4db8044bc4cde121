"""Splits a batch by cost: a budget, in tokens or any unit of the model, besides the number of inputs.

A model defines the cost of an input (`cost(input) -> int`); `max_batch_cost` of bunch.toml is the maximum of one call
of `predict`. A claimed batch over it runs in several calls. Only the executor's process has the model, so the cost is
counted there, at no expense of frontend and worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one call.

    Args:
        cost: the model's function.
        most: the budget of a call. A single input over it is run alone.
        grouped: put inputs of similar cost into the same call, and count each as the most expensive of its call: for
            models that pad to the longest.
    """

    cost: Callable[[Any], int]
    most: int
    grouped: bool = False

    def parts(self, members: Sequence[int], costs: Sequence[int]) -> list[list[int]]:
        """Split the members into parts of at most `most`, in the order of arrival unless grouped; `costs[n]` is that of
        `members[n]`.
        """
        pairs = list(zip(members, costs, strict=True))
        if self.grouped:
            # Cheap ones first: they need not wait for the calls of the others.
            pairs.sort(key=lambda pair: pair[1])
        parts: list[list[int]] = []
        spent = 0
        for member, cost in pairs:
            # Sorted, so the next one is always the most expensive.
            after = (len(parts[-1]) + 1) * cost if parts and self.grouped else spent + cost
            if parts and after <= self.most:
                parts[-1].append(member)
                spent = after
            else:
                parts.append([member])
                spent = cost
        return parts


def cut(members: list[int], safe_size: int | None) -> list[list[int]]:
    """Split into parts that fit into memory; the last one is run first."""
    if not members:
        return []
    size = safe_size or len(members)
    return [members[start : start + size] for start in range(0, len(members), size)][::-1]
