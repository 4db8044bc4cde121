"""The tiers' shares of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import DEFAULT_SHARES, allocate

depths_of_tiers = st.lists(st.integers(0, 200), min_size=3, max_size=3)
credits_of_tiers = st.tuples(*[st.floats(0, 64)] * 3)


@given(depths=depths_of_tiers, size=st.integers(1, 64), credits=credits_of_tiers)
def test_places_are_all_used_and_no_tier_gets_more_than_it_has(
    depths: list[int], size: int, credits: tuple[float, ...]
) -> None:
    takes = allocate(depths, size, credits).takes
    assert sum(takes) == min(size, sum(depths))
    assert all(0 <= take <= depth for take, depth in zip(takes, depths, strict=True))


@given(depths=depths_of_tiers, size=st.integers(1, 64), credits=credits_of_tiers)
def test_credit_is_bounded_and_only_for_tiers_that_wait(
    depths: list[int], size: int, credits: tuple[float, ...]
) -> None:
    allocation = allocate(depths, size, credits)
    if sum(depths) > size:
        for depth, credit in zip(depths, allocation.credits, strict=True):
            assert 0 <= credit <= size + 1
            assert depth or not credit


@given(size=st.integers(1, 64), batches=st.integers(1, 60), waiting=st.sets(st.sampled_from([0, 1, 2]), min_size=1))
def test_no_tier_starves_and_the_top_one_is_preferred(size: int, batches: int, waiting: set[int]) -> None:
    """Every waiting tier gets its guaranteed share over any number of batches; all the rest is the top one's."""
    credits: tuple[float, ...] = (0.0, 0.0, 0.0)
    served = [0, 0, 0]
    for _ in range(batches):
        allocation = allocate([10**6 if rank in waiting else 0 for rank in range(3)], size, credits)
        credits = allocation.credits
        served = [a + b for a, b in zip(served, allocation.takes, strict=True)]
    top = min(waiting)
    for rank in waiting - {top}:
        fair = DEFAULT_SHARES[rank] * size * batches
        assert fair - 1 <= served[rank] <= fair + 1e-6 * batches + 1e-6
    assert served[top] == size * batches - sum(served[rank] for rank in waiting - {top})


def test_a_batch_of_one_still_keeps_the_shares() -> None:
    credits: tuple[float, ...] = (0.0, 0.0, 0.0)
    served = [0, 0, 0]
    for _ in range(1000):
        allocation = allocate((10_000, 10_000, 10_000), 1, credits)
        credits = allocation.credits
        served[allocation.takes.index(1)] += 1
    assert served == [pytest.approx(700, abs=1), pytest.approx(200, abs=1), pytest.approx(100, abs=1)]
