"""The time of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Service(Protocol):
    """The time of a batch by its size; `jitter` 0.1 spreads it evenly over ±10 %, as the `simulated` model does."""

    @property
    def jitter(self) -> float: ...

    def seconds(self, size: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Affine:
    """`batch_s` + `item_s`·n: the behaviour of a GPU until it is full. With `item_s` 0 every batch takes the same
    time.
    """

    batch_s: float
    item_s: float = 0.0
    jitter: float = 0.0

    def seconds(self, size: int) -> float:
        return self.batch_s + self.item_s * size


@dataclass(frozen=True, slots=True)
class Measured:
    """A table of sizes and seconds, with linear interpolation; outside of it in proportion to the nearest entry."""

    table: Mapping[int, float]
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not self.table or any(size < 1 or not 0 < took < math.inf for size, took in self.table.items()):
            raise ValueError(f"batch times must be sizes (from 1) and seconds (above 0), not {dict(self.table)}")

    def seconds(self, size: int) -> float:
        sizes = sorted(self.table)
        if size <= sizes[0]:
            return self.table[sizes[0]]
        if size >= sizes[-1]:
            return self.table[sizes[-1]] * size / sizes[-1]
        above = next(each for each in sizes if each >= size)
        below = max(each for each in sizes if each <= size)
        if above == below:
            return self.table[size]
        part = (size - below) / (above - below)
        return self.table[below] + part * (self.table[above] - self.table[below])
