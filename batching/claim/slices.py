"""The outcomes of a batch in several calls, where they are many bytes."""

from __future__ import annotations

from collections.abc import Sequence

# Redis does nothing else during a call: several megabytes take a few milliseconds.
SLICE_BYTES = 4 * 1024 * 1024
# Outcomes of at most this size do not wait until Redis and the frontend have taken a larger one of their batch.
SMALL_BYTES = 64 * 1024


def slices_of(sizes: Sequence[int]) -> list[list[int]]:
    """The numbers of the outcomes by calls of at most `SLICE_BYTES`, where a larger one is alone; small ones first."""
    if sum(sizes) <= SMALL_BYTES:
        return [list(range(len(sizes)))]
    slices: list[list[int]] = []
    for is_large in (False, True):
        part: list[int] = []
        held = 0
        for number, size in enumerate(sizes):
            if (size > SMALL_BYTES) is not is_large:
                continue
            if part and held + size > SLICE_BYTES:
                slices.append(part)
                part, held = [], 0
            part.append(number)
            held += size
        if part:
            slices.append(part)
    return slices
