"""The learnt time of a batch: it finds the line under noise, forgets outliers and follows a drift."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batching.policy import BatchTime

MAX = 64
lines = st.tuples(st.floats(0.002, 0.2), st.floats(0, 0.005))
seeds = st.integers(0, 2**32)


def observe(time: BatchTime, line: tuple[float, float], count: int, seed: int, noise: float = 0.0) -> BatchTime:
    source = random.Random(seed)
    a_s, b_s = line
    for _ in range(count):
        size = source.randint(1, MAX)
        time = time.observe(size, (a_s + b_s * size) * (1 + source.uniform(-noise, noise)))
    return time


def near(time: BatchTime, line: tuple[float, float], share: float) -> bool:
    """Within a share of what a batch of the mean size takes: noise is in proportion to the time, so a steep line leaves
    little to be known of its beginning.
    """
    return all(
        abs(time.predict(size) - (line[0] + line[1] * size)) <= share * (line[0] + line[1] * MAX / 2)
        for size in (1, 16, 32, MAX)
    )


@given(line=lines, seed=seeds)
@example(line=(0.03125, 0.00390625), seed=509)
def test_finds_the_line_under_noise(line: tuple[float, float], seed: int) -> None:
    """Within 6 %, or a little more where the last few have just been taken for a change, as in the example."""
    assert near(observe(BatchTime(), line, 100, seed, noise=0.1), line, 0.15)


@given(line=lines, seed=seeds)
def test_outliers_hardly_move_it(line: tuple[float, float], seed: int) -> None:
    """One batch in twenty takes ten times as long."""
    source = random.Random(seed)
    time = BatchTime()
    for n in range(200):
        size = source.randint(1, MAX)
        time = time.observe(size, (line[0] + line[1] * size) * (10 if n % 20 == 19 else 1))
    assert near(time, line, 0.15)


@given(before=lines, after=lines, seed=seeds)
def test_follows_a_device_that_has_become_another(
    before: tuple[float, float], after: tuple[float, float], seed: int
) -> None:
    time = observe(observe(BatchTime(), before, 100, seed, noise=0.05), after, 150, seed + 1, noise=0.05)
    assert near(time, after, 0.15)


def test_the_first_slow_batches_are_forgotten_at_once() -> None:
    time = BatchTime().observe(8, 3.0).observe(8, 0.05)
    assert time.predict(8) == pytest.approx(0.05)


@given(size=st.integers(1, MAX), seconds=st.floats(0.001, 1))
def test_one_size_alone_leaves_the_slope_as_it_was(size: int, seconds: float) -> None:
    time = BatchTime()
    for _ in range(50):
        time = time.observe(size, seconds)
    assert time.predict(size) == pytest.approx(seconds, rel=0.02)
    assert time.b_s == 0


@given(time=st.builds(observe, st.just(BatchTime()), lines, st.integers(1, 40), seeds, st.floats(0, 0.5)))
def test_a_line_never_runs_below_nothing_nor_downwards(time: BatchTime) -> None:
    assert time.a_s >= 0
    assert time.b_s >= 0
    assert time.spread_s >= 0


@given(line=lines, budget_s=st.floats(0, 1))
def test_what_fits_is_not_late_and_one_more_would_be(line: tuple[float, float], budget_s: float) -> None:
    time = BatchTime(*line, spread_s=0.001, weight=50)
    size = time.fits(budget_s)
    if size:
        assert time.late(min(size, 10**6)) <= budget_s + 1e-6
    assert time.late(size + 1) > budget_s or size >= 1 << 30


@given(line=lines, rate=st.floats(0, 5000))
def test_the_size_that_keeps_up_does(line: tuple[float, float], rate: float) -> None:
    time = BatchTime(*line, weight=50)
    size = time.keeps_up(rate, MAX)
    assert 1 <= size <= MAX
    if size < MAX:
        assert size / time.predict(size) >= rate * (1 - 1e-9)


@given(st.lists(st.tuples(st.integers(1, MAX), st.sampled_from([0.0, 1e-12, 0.02])), min_size=2, max_size=200))
def test_batches_may_take_no_time_at_all(batches: list[tuple[int, float]]) -> None:
    time = BatchTime()
    for size, seconds in batches:
        time = time.observe(size, seconds)
    assert 0 <= time.predict(MAX) < 1
