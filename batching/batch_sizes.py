"""The sizes of batches that a model is run with (`batch_sizes`): any other batch is padded to the next larger one.

Sizes are ascending; without any, every size is one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def padded(count: int, sizes: Sequence[int]) -> int:
    """The size that a batch of `count` has with its padding; `count` where no size is as large."""
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else count


def whole(count: int, sizes: Sequence[int]) -> int:
    """The largest size without padding that `count` requests make; 0 when they are fewer than the smallest."""
    if not sizes:
        return count
    at = bisect_right(sizes, count)
    return sizes[at - 1] if at else 0
