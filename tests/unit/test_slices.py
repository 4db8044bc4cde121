"""Outcomes are divided among calls of Redis by their bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batching.claim.settler import SLICE_BYTES, _slices


@given(st.lists(st.integers(0, 3 * SLICE_BYTES), min_size=1, max_size=50))
def test_each_outcome_goes_once_in_order_and_no_call_is_too_large_unless_it_is_one(sizes: list[int]) -> None:
    parts = [list(range(len(sizes)))[each] for each in _slices(sizes)]
    assert [n for part in parts for n in part] == list(range(len(sizes)))
    for part in parts:
        assert part
        assert len(part) == 1 or sum(sizes[n] for n in part) <= SLICE_BYTES
    # None is cut that would have fitted.
    for one, following in pairwise(parts):
        assert sum(sizes[n] for n in one) + sizes[following[0]] > SLICE_BYTES
