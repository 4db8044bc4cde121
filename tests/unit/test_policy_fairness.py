"""Places of a batch between keys and between tiers, and the rate that an executor is measured at."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batching.policy import AGED_SHARE, DEFAULT_SHARES, Throughput, allocate, fair_pick, guaranteed

waiting = st.lists(st.sampled_from("abcdefgh"), max_size=200)
places = st.integers(1, 64)


@given(keys=waiting, places=places)
def test_every_place_is_used_and_each_key_is_served_in_its_order(keys: list[str], places: int) -> None:
    picked = fair_pick(keys, places)
    assert len(picked) == min(places, len(keys))
    assert picked == sorted(set(picked))
    for key in set(keys):
        positions = [position for position, each in enumerate(keys) if each == key]
        mine = [position for position in picked if keys[position] == key]
        assert mine == positions[: len(mine)]


@given(keys=waiting, places=places)
def test_no_key_gets_more_than_another_that_wants_more(keys: list[str], places: int) -> None:
    got = Counter(keys[position] for position in fair_pick(keys, places))
    wanted = Counter(keys)
    for key in wanted:
        if got[key] < wanted[key]:
            assert max(got.values()) <= got[key] + 1


@given(keys=waiting, places=places)
def test_one_key_alone_is_served_in_the_order_of_waiting(keys: list[str], places: int) -> None:
    assert fair_pick(["a"] * len(keys), places) == list(range(min(len(keys), places)))


def test_a_key_with_little_is_in_the_next_batch_whatever_another_has_queued() -> None:
    keys = ["hog"] * 400 + ["small"]
    assert fair_pick(keys, 8) == [*range(7), 400]


shares = st.tuples(st.just(0.0), st.floats(0, 0.3), st.floats(0, 0.3))


@given(aged=st.tuples(*[st.booleans()] * 3), size=st.integers(1, 64))
def test_a_tier_that_has_aged_gets_its_larger_share(aged: tuple[bool, ...], size: int) -> None:
    total, credits = [0] * 3, (0.0,) * 3
    for _ in range(100):
        allocation = allocate((10_000,) * 3, size, credits, guaranteed(DEFAULT_SHARES, (False, *aged[1:])))
        credits = allocation.credits
        total = [a + b for a, b in zip(total, allocation.takes, strict=True)]
    for rank in (1, 2):
        share = max(DEFAULT_SHARES[rank], AGED_SHARE) if aged[rank] else DEFAULT_SHARES[rank]
        assert total[rank] == pytest.approx(100 * size * share, abs=size + 1)


@given(seed=st.integers(0, 10**6), backlog=st.integers(1, 350))
def test_the_lowest_tier_is_served_within_its_bound_at_150_percent_of_the_highest(seed: int, backlog: int) -> None:
    """In virtual time, with 150 % for the highest tier alone and more for the second."""
    rate, size, ageing_s = 1000.0, 50, 0.5
    rng = random.Random(seed)
    free = deque([0.0] * backlog)
    top = paid = 0.0
    now, credits = 0.0, (0.0,) * 3
    while free:
        now += size / rate
        top += rng.uniform(0.5, 1.5) * 1.5 * size
        paid += 0.2 * size
        aged = (False, now >= ageing_s, now - free[0] >= ageing_s)
        allocation = allocate((int(top), int(paid), len(free)), size, credits, guaranteed(DEFAULT_SHARES, aged))
        credits = allocation.credits
        top, paid = top - allocation.takes[0], paid - allocation.takes[1]
        for _ in range(allocation.takes[2]):
            free.popleft()
    batch_s = size / rate
    assert now <= ageing_s + backlog / (AGED_SHARE * rate) + 2 * batch_s


sizes = st.lists(st.integers(1, 64), min_size=30, max_size=60)


@given(sizes=sizes, fixed=st.floats(0.001, 0.2), item=st.floats(0, 0.01))
def test_the_pace_of_full_batches_is_found_from_smaller_ones(sizes: list[int], fixed: float, item: float) -> None:
    assume(len(set(sizes[-16:])) > 3)
    pace = Throughput()
    for size in sizes:
        pace = pace.observe(size, fixed + item * size)
    assert pace.rate(64) == pytest.approx(64 / (fixed + 64 * item), rel=0.01)


@given(size=st.integers(1, 64), seconds=st.floats(0.001, 1))
def test_batches_of_one_size_promise_the_most_that_is_possible(size: int, seconds: float) -> None:
    pace = Throughput()
    for _ in range(10):
        pace = pace.observe(size, seconds)
    assert pace.rate(64) == pytest.approx(64 / seconds)


@given(samples=st.lists(st.tuples(st.integers(1, 64), st.floats(0.0001, 5)), min_size=4, max_size=100))
def test_a_pace_is_always_between_the_two_extremes(samples: list[tuple[int, float]]) -> None:
    pace = Throughput()
    for size, seconds in samples:
        pace = pace.observe(size, seconds)
    for size in (1, 32, 64):
        assert pace.seconds(size) > 0
    assert pace.seconds(1) <= pace.seconds(64) * (1 + 1e-9)


def test_the_first_batch_pays_for_what_is_done_once_and_three_more_make_a_rate() -> None:
    pace = Throughput()
    for seconds in (30.0, 0.1, 0.1):
        pace = pace.observe(64, seconds)
        assert pace.rate(64) == 0.0
    assert pace.observe(64, 0.1).rate(64) == pytest.approx(640)


def test_one_stall_does_not_make_a_model_slow_and_a_lasting_change_shows() -> None:
    pace = Throughput()
    for _ in range(50):
        pace = pace.observe(64, 0.05)
    stalled = pace.observe(64, 10.0)
    assert stalled.rate(64) > 0.8 * pace.rate(64)
    for _ in range(60):
        stalled = stalled.observe(64, 0.2)
    assert stalled.rate(64) == pytest.approx(64 / 0.2, rel=0.1)
