"""Batches of a model with `batch_sizes`: rounded down or padded, by what the learned time of each size says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.batch_sizes import padded, whole
from batching.claim.loop_state import LoopState, Waiting
from batching.policy import Adaptive, Dispatch, Learnt, Look, QueueView, Reason, StepTime, WhenIdle, rounded
from batching.policy.slo import sparing
from batching.simulator import Affine, Callers, Poisson, Scenario, simulate

SIZES = (1, 2, 4, 8, 16, 32, 64)
ASCENDING = st.lists(st.integers(1, 500), min_size=1, max_size=8, unique=True).map(lambda each: tuple(sorted(each)))


def learnt(per_item_s: float, fixed_s: float = 0.0, sizes: tuple[int, ...] = SIZES) -> StepTime:
    """The times of a model that takes `fixed_s` + `per_item_s` for each row."""
    time = StepTime.of(sizes)
    for _ in range(4):
        for size in sizes:
            time = time.observe(size, fixed_s + per_item_s * size)
    return time


def view(depth: int | None, time: StepTime, *, rate: float = 0.0, idle: int = 0, due_at: float = math.inf) -> QueueView:
    return QueueView(depth=depth, idle=idle, due_at=due_at, learnt=Learnt(rate=rate, time=time))


def size_of(depth: int, time: StepTime, **about: float) -> int:
    decision = rounded(Dispatch(64, Reason.IDLE), view(depth, time, **about), 0.0, SIZES)  # type: ignore[arg-type]
    assert isinstance(decision, Dispatch)
    return decision.size


@given(st.integers(1, 1000), ASCENDING)
def test_a_batch_lies_between_its_whole_and_its_padded_size(count: int, sizes: tuple[int, ...]) -> None:
    assert whole(count, sizes) <= count <= padded(count, sizes)
    assert whole(count, sizes) in (0, *sizes)
    assert padded(count, sizes) in (count, *sizes)
    assert all(not whole(count, sizes) < size < padded(count, sizes) for size in sizes if count < sizes[-1])


def test_without_sizes_any_number_is_one() -> None:
    assert (padded(37, ()), whole(37, ())) == (37, 37)


@given(st.integers(1, 200), st.integers(1, 64), ASCENDING, st.floats(0, 2000), st.floats(0, 0.1), st.floats(0, 0.1))
def test_whatever_is_dispatched_is_a_size_or_padded_to_one_and_never_more_than_was_decided(
    depth: int, most: int, sizes: tuple[int, ...], rate: float, fixed_s: float, item_s: float
) -> None:
    time = learnt(item_s + 1e-6, fixed_s, sizes)
    decision = rounded(Dispatch(most, Reason.FULL), view(depth, time, rate=rate), 0.0, sizes)
    assert isinstance(decision, Dispatch)
    assert 1 <= decision.size <= min(most, sizes[-1])
    count = min(depth, decision.size)
    assert padded(count, sizes) in sizes
    # No request that comes between the decision and the claim makes the batch one size larger.
    assert padded(count, sizes) == padded(decision.size, sizes) or decision.size == most


def test_a_batch_that_fills_a_size_leaves_as_it_is() -> None:
    for size in SIZES:
        assert size_of(size, learnt(0.001)) == size


def test_the_rest_waits_where_both_batches_take_no_longer_than_the_padded_one() -> None:
    nearly_in_proportion = learnt(0.001, 0.001)
    assert size_of(33, nearly_in_proportion) == 32, "32 and 1 rows instead of 64"
    assert size_of(63, nearly_in_proportion) == 64, "32 and 32 rows take longer than 64"
    mostly_fixed = learnt(0.0001, 0.05)
    assert size_of(33, mostly_fixed) == 64


def test_the_rest_waits_where_more_will_come_and_nothing_is_lost() -> None:
    time = learnt(0.001, 0.004)
    assert size_of(60, time) == 64
    # In the 36 ms of 32 rows come 36 more, and 32 in 36 ms are more per second than 60 in 68 ms.
    assert size_of(60, time, rate=1000.0) == 32
    assert size_of(60, time, rate=120.0) == 32, "28 are left, and 4 come"
    assert size_of(60, time, rate=100.0) == 64, "3 come"
    # The executor would serve fewer per second.
    assert size_of(62, time, rate=1000.0) == 64


def test_another_idle_executor_takes_the_rest_at_once() -> None:
    time = learnt(0.001, 0.05)
    assert size_of(40, time) == 64
    assert size_of(40, time, idle=1) == 32


def test_nobody_is_left_behind_who_would_be_late() -> None:
    time = learnt(0.001)
    assert size_of(33, time, due_at=1.0) == 32
    assert size_of(33, time, due_at=0.0325) == 64


def test_before_the_times_are_known_a_batch_is_padded() -> None:
    assert size_of(33, StepTime.of(SIZES)) == 64


def test_the_number_of_requests_is_looked_up_unless_the_size_is_the_smallest() -> None:
    asked = rounded(Dispatch(64, Reason.IDLE), view(None, learnt(0.001)), 0.0, SIZES)
    assert isinstance(asked, Look)
    assert rounded(Dispatch(1, Reason.IDLE), view(None, learnt(0.001)), 0.0, SIZES) == Dispatch(1, Reason.IDLE)


def test_a_margin_is_that_of_the_batch_that_leaves() -> None:
    time = learnt(0.001)
    decision = rounded(Dispatch(64, Reason.DEADLINE, 0.064), view(33, time, due_at=9.0), 0.0, SIZES)
    assert isinstance(decision, Dispatch)
    assert (decision.size, decision.margin_s) == (32, pytest.approx(0.032, rel=0.01))


def test_a_batch_that_is_claimed_ahead_keeps_its_wait_for_the_one_before() -> None:
    waits = view(33, learnt(0.001), due_at=9.0)._replace(in_hand=1, free_at=0.3)
    decision = rounded(sparing(Dispatch(64, Reason.IDLE), waits, 0.0), waits, 0.0, SIZES)
    assert isinstance(decision, Dispatch)
    assert (decision.size, decision.margin_s) == (32, pytest.approx(0.332, rel=0.01))
    # After both batches, the one that is left behind would be late.
    hurried = waits._replace(due_at=0.3325)
    padded_up = rounded(Dispatch(64, Reason.IDLE), hurried, 0.0, SIZES)
    assert isinstance(padded_up, Dispatch)
    assert padded_up.size == 64


def test_the_time_of_a_batch_is_that_of_its_padded_size() -> None:
    steps = {1: 0.01, 8: 0.05, 64: 0.06}
    time = StepTime.of(tuple(steps))
    for _ in range(4):
        for size, seconds in steps.items():
            time = time.observe(size, seconds)
    for count in range(1, 65):
        assert time.predict(count) == pytest.approx(steps[padded(count, time.sizes)], rel=0.01)
    assert time.fits(0.055) == 8
    assert time.fits(0.001) == 0
    assert time.keeps_up(100.0, 64) == 1
    assert time.keeps_up(150.0, 64) == 8
    assert time.keeps_up(99_999.0, 64) == 64


def test_a_size_that_was_never_run_is_on_the_line_through_the_others() -> None:
    time = StepTime.of(SIZES)
    for _ in range(4):
        for size in (1, 8, 64):
            time = time.observe(size, 0.01 + 0.001 * size)
    assert time.predict(20) == pytest.approx(0.01 + 0.032, rel=0.05)


def test_a_padded_batch_is_learned_as_one_of_its_size() -> None:
    assert StepTime.of(SIZES).observe(33, 0.064).predict(64) == pytest.approx(0.064)


def test_other_sizes_are_learned_anew() -> None:
    state: LoopState[str] = LoopState(WhenIdle(64), sizes=(8, 64))
    state.claimed("a", 5, 0, 0.0, 0.0, 0.0)
    state.finished("a", 5, 0.1)
    assert state.learner.learnt.time.known
    state.use(WhenIdle(64), (8, 64))
    assert state.learner.learnt.time.known, "the same sizes: another policy keeps what was learned"
    state.use(WhenIdle(64), (4, 64))
    assert not state.learner.learnt.time.known
    decision = state.decide(Waiting(3, 0.0, math.inf), 1.0)
    assert isinstance(decision, Dispatch)
    assert decision.size == 4


LOAD = Scenario(
    arrivals=Poisson(600.0),
    service=Affine(0.002, 0.001),
    policy=lambda: Adaptive(64),
    duration_s=20.0,
    drain_s=60.0,
    new_size_s=0.5,
)


def test_a_model_that_compiles_for_each_size_serves_more_with_few_sizes() -> None:
    free, few = (simulate(replace(LOAD, batch_sizes=sizes)) for sizes in ((), SIZES))
    assert few.answered == few.requests
    assert few.p99_ms is not None
    assert free.p99_ms is not None
    assert few.p99_ms * 5 < free.p99_ms


@pytest.mark.parametrize("arrivals", [Poisson(700.0), Callers(24), Callers(40)])
def test_few_sizes_cost_little_where_sizes_cost_nothing(arrivals: Poisson | Callers) -> None:
    load = replace(LOAD, arrivals=arrivals, new_size_s=0.0)
    free, few = (simulate(replace(load, batch_sizes=sizes)) for sizes in ((), SIZES))
    assert few.throughput_rps > 0.8 * free.throughput_rps


def test_rounding_down_keeps_latencies_low_where_padding_would_fill_the_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = replace(LOAD, arrivals=Poisson(680.0), new_size_s=0.0, batch_sizes=SIZES)
    rounding = simulate(load)
    monkeypatch.setattr("batching.policy.shapes._pays", lambda *_: False)
    padding = simulate(load)
    assert rounding.p95_ms is not None
    assert padding.p95_ms is not None
    assert rounding.p95_ms < 0.5 * padding.p95_ms


def test_the_learned_steps_are_ascending_for_a_model_whose_times_are() -> None:
    time = learnt(0.001, 0.01)
    assert all(one < other for one, other in pairwise(map(time.predict, SIZES)))
