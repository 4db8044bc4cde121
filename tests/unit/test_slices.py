"""Outcomes are divided among calls of Redis by their bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batching.claim.slices import SLICE_BYTES, SMALL_BYTES, slices_of

SIZES = st.integers(0, 3 * SLICE_BYTES) | st.integers(0, 2 * SMALL_BYTES)


@given(st.lists(SIZES, min_size=1, max_size=50))
def test_each_outcome_goes_once_the_small_ones_first_and_no_call_is_too_large_unless_it_is_one(
    sizes: list[int],
) -> None:
    parts = slices_of(sizes)
    small = [n for n, size in enumerate(sizes) if size <= SMALL_BYTES]
    large = [n for n, size in enumerate(sizes) if size > SMALL_BYTES]
    assert [n for part in parts for n in part] == small + large
    for part in parts:
        assert part
        assert len(part) == 1 or sum(sizes[n] for n in part) <= SLICE_BYTES
        # A small one never waits for a large one.
        assert not (set(part) & set(small) and set(part) & set(large))
    # None is cut that would have fitted.
    for one, following in pairwise(parts):
        kinds = (one[0] in small, following[0] in small)
        assert kinds == (True, False) or sum(sizes[n] for n in one) + sizes[following[0]] > SLICE_BYTES


def test_a_batch_of_small_outcomes_is_one_call() -> None:
    assert slices_of([SMALL_BYTES // 64] * 64) == [list(range(64))]
    assert slices_of([SMALL_BYTES] * 64) == [list(range(64))]
    assert slices_of([]) == [[]]
