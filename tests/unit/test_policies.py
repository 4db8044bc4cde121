"""When batches leave: the rules one by one, and what holds for all of them in any order of arrivals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import (
    DEFAULT_SHARES,
    Adaptive,
    Dispatch,
    FixedWindow,
    Look,
    Policy,
    QueueView,
    Reason,
    Wait,
    WhenIdle,
    allocate,
)

MAX = 8
WINDOW_S = 0.05
LEAD_S = 0.005
FIXED = FixedWindow(MAX, WINDOW_S, LEAD_S)
IDLE = WhenIdle(MAX, LEAD_S)
ADAPTIVE = Adaptive(MAX, WINDOW_S, lead_s=LEAD_S)
POLICIES = pytest.mark.parametrize("policy", [FIXED, IDLE, ADAPTIVE], ids=lambda policy: type(policy).__name__)

seconds = st.floats(0, 100, allow_nan=False)
views = st.builds(
    QueueView,
    depth=st.none() | st.integers(0, 3 * MAX),
    oldest_at=seconds | st.just(-math.inf),
    in_hand=st.integers(0, 2),
    free_at=seconds,
    batch_s=st.floats(0, 1),
    recent=st.integers(0, MAX),
)


@POLICIES
@given(view=views, now=seconds)
def test_never_over_its_maximum(policy: Policy, view: QueueView, now: float) -> None:
    decision = policy.decide(view, now)
    if isinstance(decision, Dispatch):
        assert 1 <= decision.size <= MAX


@POLICIES
@given(view=views, now=seconds)
def test_a_wait_ends_later_than_now(policy: Policy, view: QueueView, now: float) -> None:
    """One that has ended already would be a busy loop."""
    decision = policy.decide(view, now)
    if isinstance(decision, Wait):
        assert decision.until > now


@POLICIES
@given(view=views, now=seconds)
def test_looks_only_when_nobody_has_looked(policy: Policy, view: QueueView, now: float) -> None:
    if isinstance(policy.decide(view, now), Look):
        assert view.depth is None


@POLICIES
@given(view=views, now=seconds)
def test_claims_ahead_only_full_batches_within_the_lead(policy: Policy, view: QueueView, now: float) -> None:
    decision = policy.decide(view, now)
    if view.in_hand and isinstance(decision, Dispatch):
        assert view.in_hand == 1
        assert view.depth is not None
        assert view.depth >= MAX
        assert decision == Dispatch(MAX, Reason.FULL)
        assert now >= view.free_at - LEAD_S
        assert view.batch_s >= 2 * LEAD_S


@POLICIES
@given(view=views, now=seconds)
def test_a_full_batch_goes_to_a_free_executor(policy: Policy, view: QueueView, now: float) -> None:
    if view.in_hand == 0 and view.depth is not None and view.depth >= MAX:
        assert policy.decide(view, now) == Dispatch(MAX, Reason.FULL)


@POLICIES
def test_waits_for_the_bell_when_nothing_waits(policy: Policy) -> None:
    assert policy.decide(QueueView(0), 5.0) == Wait()


def test_a_fixed_window_counts_from_the_oldest() -> None:
    view = QueueView(3, oldest_at=10.0, free_at=10.04)
    assert FIXED.decide(view, 10.049) == Wait(until=10.0 + WINDOW_S)
    assert FIXED.decide(view, 10.0 + WINDOW_S) == Dispatch(MAX, Reason.DELAY)


def test_a_fixed_window_does_not_hold_requests_of_unknown_age() -> None:
    assert FIXED.decide(QueueView(1), 10.0) == Dispatch(MAX, Reason.DELAY)


@given(view=views, now=seconds)
def test_when_idle_never_leaves_a_free_executor_idle(view: QueueView, now: float) -> None:
    if view.in_hand == 0 and view.depth != 0:
        assert isinstance(IDLE.decide(view, now), Dispatch)


def test_batches_as_short_as_the_lead_are_not_claimed_ahead() -> None:
    view = QueueView(MAX, in_hand=1, free_at=1.0, batch_s=1.5 * LEAD_S)
    assert IDLE.decide(view, 0.9999) == Wait()


@dataclass(frozen=True)
class Batch:
    """`free_at` is when the executor had last come free; `ahead` whether it was still busy."""

    at: float
    arrivals: list[float]
    free_at: float
    ahead: bool


def simulate(policy: Policy, arrivals: Sequence[float], batch_s: float) -> list[Batch]:
    """One executor that takes `batch_s` for each batch, in virtual time."""
    coming = deque(sorted(arrivals))
    queue: deque[float] = deque()
    done_at: deque[float] = deque()
    batches: list[Batch] = []
    sizes = (0, 0)
    now = free_at = 0.0
    while coming or queue:
        while coming and coming[0] <= now:
            queue.append(coming.popleft())
        while done_at and done_at[0] <= now:
            free_at = done_at.popleft()
        busy_until = done_at[0] if done_at else free_at
        view = QueueView(
            len(queue), queue[0] if queue else now, len(done_at), busy_until, batch_s if batches else 0.0, max(sizes)
        )
        decision = policy.decide(view, now)
        if isinstance(decision, Dispatch):
            taken = [queue.popleft() for _ in range(min(decision.size, len(queue)))]
            assert taken, "nothing to claim"
            batches.append(Batch(now, taken, free_at, ahead=bool(done_at)))
            done_at.append(max(now, done_at[-1] if done_at else now) + batch_s)
            sizes = (sizes[1], len(taken))
        else:
            assert isinstance(decision, Wait)
            now = min([decision.until, *list(coming)[:1], *list(done_at)[:1]])
            assert now < math.inf, "requests wait for something that never comes"
    return batches


gaps = st.lists(st.sampled_from([0.0, 0.0001, 0.001, 0.01, 0.049, 0.3]), min_size=1, max_size=60)
durations = st.sampled_from([0.0005, 0.004, 0.02, 0.2])


def arrivals_of(gaps: Sequence[float]) -> list[float]:
    at = 0.0
    return [at := at + gap for gap in gaps]


@POLICIES
@given(gaps=gaps, batch_s=durations)
def test_every_request_runs_once_in_order(policy: Policy, gaps: list[float], batch_s: float) -> None:
    arrivals = arrivals_of(gaps)
    batches = simulate(policy, arrivals, batch_s)
    assert [each for batch in batches for each in batch.arrivals] == arrivals
    assert all(len(batch.arrivals) <= MAX for batch in batches)


@given(gaps=gaps, batch_s=durations)
def test_when_idle_holds_nothing_back(gaps: list[float], batch_s: float) -> None:
    for batch in simulate(IDLE, arrivals_of(gaps), batch_s):
        assert batch.ahead or batch.at == max(batch.arrivals[0], batch.free_at)


@given(gaps=gaps, batch_s=durations)
def test_a_fixed_window_bounds_every_wait_for_a_free_executor(gaps: list[float], batch_s: float) -> None:
    for batch in simulate(FIXED, arrivals_of(gaps), batch_s):
        due = batch.arrivals[0] + WINDOW_S
        assert batch.ahead or batch.at <= max(due, batch.free_at)
        if batch.at < due:
            assert len(batch.arrivals) == MAX


@given(gaps=gaps, batch_s=durations)
def test_gathering_is_bounded_from_the_moment_the_executor_was_free(gaps: list[float], batch_s: float) -> None:
    for batch in simulate(ADAPTIVE, arrivals_of(gaps), batch_s):
        assert batch.ahead or batch.at <= max(batch.arrivals[0], batch.free_at + WINDOW_S)


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
