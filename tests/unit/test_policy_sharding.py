"""One batch from several shards: nothing is left behind that fits, nobody starves, tiers and keys are served alike."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import DEFAULT_SHARES, Part, ShardView, Sharing
from batching.policy.sharding import capacity_shares
from batching.policy.tiers import AGED_SHARE

AGEING_S = 0.5
TIERS = 3


def view(*depths: int, oldest_at: float = 0.0, asked_at: float = 0.0) -> ShardView:
    full = depths + (0,) * (TIERS - len(depths))
    return ShardView(full, tuple(oldest_at if each else math.inf for each in full), asked_at)


depths_of_a_shard = st.tuples(*[st.integers(0, 80)] * TIERS)
shards_of_any_depth = st.lists(
    st.builds(
        lambda depths, oldest_at, asked_at: view(*depths, oldest_at=oldest_at, asked_at=asked_at),
        depths_of_a_shard,
        st.floats(-2, 0),
        st.floats(-2, 0),
    ),
    max_size=20,
)


@given(
    shards=shards_of_any_depth,
    size=st.integers(1, 64),
    served=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2)), max_size=9),
)
def test_a_batch_is_filled_when_the_sum_over_shards_suffices(
    shards: list[ShardView], size: int, served: list[tuple[int, int]]
) -> None:
    sharing = Sharing(AGEING_S)
    for shard, rank in served:
        sharing.took(shard, rank, 10)
    parts = sharing.plan(shards, size, 0.0)
    waiting = sum(each.depth for each in shards)
    assert sum(each.size for each in parts) == (size if waiting else 0)
    assert len({each.shard for each in parts}) == len(parts)
    # What is taken for sure: of what is known, as much as fits.
    assert sum(min(each.size, shards[each.shard].depth) for each in parts) == min(size, waiting)
    for each in parts:
        if each.takes is not None:
            assert sum(each.takes) == each.size
            assert all(take <= depth for take, depth in zip(each.takes, shards[each.shard].depths, strict=True))


@given(shards=shards_of_any_depth, size=st.integers(1, 64))
def test_a_higher_tier_is_left_behind_only_for_the_guaranteed_shares(shards: list[ShardView], size: int) -> None:
    depths = [sum(each.depths[rank] for each in shards) for rank in range(TIERS)]
    if sum(depths) <= size:
        return
    taken = [0] * TIERS
    for part in Sharing(AGEING_S).plan(shards, size, 0.0):
        for rank in range(TIERS):
            taken[rank] += part.takes[rank] if part.takes else 0
    if any(taken):
        top = next(rank for rank in range(TIERS) if depths[rank])
        lower = AGED_SHARE * (TIERS - 1 - top)
        assert taken[top] >= min(depths[top], math.floor((1 - lower) * size))


def test_the_highest_tier_then_the_oldest_then_the_deepest_is_asked_first() -> None:
    shards = [view(0, 9, oldest_at=-9), view(1), view(1, oldest_at=-1), view(4), view(), view(0, 0, 99, oldest_at=-99)]
    assert Sharing(AGEING_S).order(shards) == [2, 3, 1, 0, 5]


def test_a_full_batch_of_one_shard_is_left_to_that_shard() -> None:
    assert Sharing(AGEING_S).plan([view(), view(50, 50)], 64, 0.0) == (Part(1, 64),)


def test_room_that_is_left_is_for_what_comes_meanwhile() -> None:
    assert Sharing(AGEING_S).plan([view(5), view(), view(0, 3)], 15, 0.0) == (Part(0, 9), Part(2, 6))


class Life:
    """Batches taken from shards that never empty, unless `depths` says so."""

    def __init__(self, depths: list[tuple[int, ...]], keys: list[int] | None = None) -> None:
        self.depths = depths
        self.keys = keys or [1] * len(depths)
        self.sharing = Sharing(AGEING_S)
        self.asked_at = [0.0] * len(depths)
        self.taken: Counter[tuple[int, int]] = Counter()
        self.leases = 0

    def batch(self, size: int, now: float, oldest_at: float | None = None) -> tuple[Part, ...]:
        old = now if oldest_at is None else oldest_at
        shards = [view(*each, oldest_at=old, asked_at=at) for each, at in zip(self.depths, self.asked_at, strict=True)]
        parts = self.sharing.plan(shards, size, now)
        for part in parts:
            self.asked_at[part.shard] = now
            self.leases += 1
            takes = part.takes or (*(size if rank == shards[part.shard].top else 0 for rank in range(TIERS)),)
            for rank, count in enumerate(takes):
                if count:
                    self.sharing.took(part.shard, rank, count, self.keys[part.shard])
                    self.taken[part.shard, rank] += count
        return parts


@pytest.mark.parametrize("count", [2, 4, 16])
def test_shards_that_all_wait_get_the_same(count: int) -> None:
    life = Life([(1000,)] * count)
    for number in range(200):
        life.batch(64, number * 0.01)
    assert max(life.taken.values()) - min(life.taken.values()) <= 64
    assert life.leases <= 400, "a batch has one lease, or two"


def test_keys_get_the_same_wherever_they_are() -> None:
    life = Life([(1000,)] * 4, keys=[1, 1, 2, 12])
    for number in range(400):
        life.batch(64, number * 0.01)
    each = [life.taken[shard, 0] / keys for shard, keys in enumerate(life.keys)]
    assert max(each) < 1.1 * min(each)


def test_a_shard_that_had_nothing_is_next_and_has_saved_up_nothing() -> None:
    life = Life([(1000,), (1000,), (0,)])
    for number in range(100):
        life.batch(64, number * 0.001)
    life.depths[2] = (1000,)
    assert life.batch(64, 0.1)[0].shard == 2
    before = life.taken[2, 0]
    for number in range(30):
        life.batch(64, 0.1 + number * 0.001)
    assert life.taken[2, 0] - before <= 12 * 64


@pytest.mark.parametrize(("count", "batch_s", "size"), [(16, 0.2, 64), (16, 0.02, 64), (64, 0.2, 64), (16, 0.3, 8)])
def test_no_shard_is_left_alone_for_longer_than_the_ageing_time(count: int, batch_s: float, size: int) -> None:
    life = Life([(1000,)] * count)
    worst = 0.0
    for number in range(200):
        now = number * batch_s
        before = list(life.asked_at)
        life.batch(size, now, oldest_at=-1.0)
        if number > 2 * count:
            worst = max([worst, *(now - at for at, after in zip(before, life.asked_at, strict=True) if after == now)])
    # Small batches cannot visit them all in time; then they are visited in turn.
    assert worst <= max(AGEING_S + 2 * batch_s, batch_s * (math.ceil(count / size) + 1))


def test_what_has_just_come_waits_for_its_turn_although_its_shard_was_not_asked_for_long() -> None:
    fresh = [view(9, oldest_at=10.0, asked_at=-math.inf) for _ in range(5)]
    assert len(Sharing(AGEING_S).plan(fresh, 8, 10.0)) == 1
    aged = [view(9, oldest_at=10.0, asked_at=-math.inf) for _ in range(5)]
    assert len(Sharing(AGEING_S).plan(aged, 8, 10.0 + AGEING_S)) == 5


def test_lower_tiers_keep_their_shares_when_they_wait_in_other_shards() -> None:
    life = Life([(1000, 0, 0), (0, 1000, 0), (0, 0, 1000), (1000, 1000, 1000)])
    for number in range(200):
        life.batch(64, number * 0.01)
    for rank, share in enumerate(DEFAULT_SHARES):
        taken = sum(life.taken[shard, rank] for shard in range(4))
        assert taken == pytest.approx((share or 0.7) * 64 * 200, rel=0.01)


def test_aged_tiers_get_the_larger_share_over_shards() -> None:
    life = Life([(1000, 0, 0), (0, 0, 1000)])
    for number in range(100):
        life.batch(64, number * 0.01, oldest_at=-1.0)
    assert life.taken[1, 2] == pytest.approx(AGED_SHARE * 64 * 100, rel=0.01)


def test_a_random_life_serves_everybody() -> None:
    """Conservation over many batches: whatever came is taken, once, and nothing else."""
    rng = random.Random(7)
    waiting = [[0] * TIERS for _ in range(8)]
    sharing, came, taken = Sharing(AGEING_S), 0, 0
    for number in range(400):
        if number < 300:
            waiting[rng.randrange(8)][rng.randrange(TIERS)] += (more := rng.choice((1, 5, 90)))
            came += more
        shards = [view(*each, oldest_at=number - 2.0, asked_at=number - 1.0) for each in waiting]
        for part in sharing.plan(shards, 32, float(number)):
            takes = part.takes
            if takes is None:
                left, own = part.size, []
                for depth in waiting[part.shard]:
                    own.append(min(left, depth))
                    left -= own[-1]
                takes = tuple(own)
            for rank, count in enumerate(takes):
                waiting[part.shard][rank] -= count
                taken += count
                sharing.took(part.shard, rank, count)
        assert all(depth >= 0 for each in waiting for depth in each)
    assert came == taken
    assert not any(map(any, waiting))


@given(claimed=st.lists(st.floats(0, 1000), min_size=1, max_size=20), capacity=st.floats(1, 2000))
def test_a_shard_counts_on_what_the_others_leave_and_on_an_even_share_at_least(
    claimed: list[float], capacity: float
) -> None:
    shares = capacity_shares(capacity, claimed)
    even = 1 / len(claimed)
    assert all(even - 1e-9 <= share <= 1 for share in shares)
    # Whatever the workers can do is admitted somewhere.
    assert sum(shares) >= 1 - 1e-9
    for mine, share in zip(claimed, shares, strict=True):
        left = 1 - (sum(claimed) - mine) / capacity
        assert share == pytest.approx(min(1, max(even, left)))


def test_a_quiet_fleet_promises_each_shard_all_of_it_and_a_busy_one_what_it_gives() -> None:
    assert capacity_shares(100, [0, 0, 0, 0]) == [1, 1, 1, 1]
    assert capacity_shares(100, [50, 30, 20]) == pytest.approx([0.5, 1 / 3, 1 / 3])
    assert capacity_shares(0, [5, 0]) == [1, 1], "nothing is known yet"
