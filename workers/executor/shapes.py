"""The shapes of a model's calls: sizes of batches (`batch_sizes`) and lengths of inputs (`length_buckets`).

    members ──lengths──▶ a part for each bucket ──cut──▶ parts of at most the largest size ──▶ calls, padded

A part has the inputs of one bucket, and shorter ones only in rows that would otherwise be padding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batching.batch_sizes import padded, whole

# The key of an input's parameters in which a model finds the length to pad to.
BUCKET = "length_bucket"


class Part(NamedTuple):
    """The members of one call. `bucket` is the length to which their inputs are padded; 0: no buckets."""

    members: list[int]
    bucket: int = 0


@dataclass(frozen=True, slots=True)
class Shapes:
    """The allowed shapes, ascending; empty: any. `length` is the model's function, needed for buckets."""

    sizes: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()
    length: Callable[[Any], int] | None = None

    def size(self, count: int) -> int:
        """The size of a call for `count` inputs, with its padding."""
        return padded(count, self.sizes)

    def most(self, safe_size: int | None) -> int | None:
        """The size of the largest call, where memory has room for `safe_size`; None: any."""
        if not self.sizes:
            return safe_size
        if safe_size is None:
            return self.sizes[-1]
        return whole(safe_size, self.sizes) or self.sizes[0]

    def smaller(self, count: int) -> int:
        """The largest size below that of a call for `count` inputs; 0: there is none, or any size is one."""
        return whole(self.size(count) - 1, self.sizes) if self.sizes else 0

    def by_bucket(self, members: Sequence[int], lengths: Sequence[int], most: int | None) -> list[Part]:
        """A part for each bucket and size, the longest first. No length is over the largest bucket."""
        at = {member: bisect_left(self.buckets, length) for member, length in zip(members, lengths, strict=True)}
        left = sorted(members, key=lambda member: -at[member])
        parts = []
        while left:
            own = sum(at[member] == at[left[0]] for member in left)
            size = self.size(min(own, most or own))
            parts.append(Part(left[:size], self.buckets[at[left[0]]]))
            left = left[size:]
        return parts


ANY_SHAPE = Shapes()
