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
    Adaptive,
    BatchTime,
    Dispatch,
    EwmaWindow,
    FixedWindow,
    Learner,
    Learnt,
    Look,
    PidWindow,
    Policy,
    QueueView,
    Reason,
    SloAware,
    Speculative,
    Thresholds,
    Wait,
    WhenIdle,
)
from batching.policy.published.pid import Controller

MAX = 8
WINDOW_S = 0.05
LEAD_S = 0.005
FIXED = FixedWindow(MAX, WINDOW_S, LEAD_S)
IDLE = WhenIdle(MAX, LEAD_S)
ADAPTIVE = Adaptive(MAX, WINDOW_S, lead_s=LEAD_S)
WINDOWED = [
    FIXED,
    EwmaWindow(MAX, WINDOW_S, LEAD_S),
    PidWindow(MAX, WINDOW_S, lead_s=LEAD_S),
    Thresholds(MAX, WINDOW_S, quiet_size=3, size=5, lead_s=LEAD_S),
    SloAware(MAX, WINDOW_S, lead_s=LEAD_S),
    Speculative(MAX, WINDOW_S, lead_s=LEAD_S),
]
POLICIES = pytest.mark.parametrize("policy", [*WINDOWED, IDLE, ADAPTIVE], ids=lambda policy: type(policy).__name__)
WITH_WINDOW = pytest.mark.parametrize("policy", WINDOWED, ids=lambda policy: type(policy).__name__)

seconds = st.floats(0, 100, allow_nan=False)
shares = st.floats(0, 1)
times = st.builds(
    BatchTime,
    a_s=st.floats(0, 1),
    b_s=st.floats(0, 0.1),
    spread_s=st.floats(0, 0.1),
    weight=st.sampled_from([1.0, 50.0]),
)
learnt = st.builds(
    Learnt,
    rate=st.floats(0, 1e5),
    utilisation=shares,
    closed_loop_share=shares,
    time=times,
    memory=st.none() | st.builds(Controller, *[st.floats(0, 1)] * 3, at=seconds),
)
views = st.builds(
    QueueView,
    depth=st.none() | st.integers(0, 3 * MAX),
    oldest_at=seconds | st.just(-math.inf),
    in_hand=st.integers(0, 2),
    free_at=seconds,
    batch_s=st.floats(0, 1),
    recent=st.integers(0, MAX),
    due_at=seconds | st.just(math.inf),
    idle=st.integers(0, 3),
    learnt=learnt,
    read_s=st.floats(0, 1),
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
@given(view=views, now=seconds, more=st.integers(0, 2 * MAX), spare_s=seconds | st.just(math.inf), oldest_at=seconds)
def test_what_may_be_claimed_along_with_a_look_is_what_the_look_would_lead_to(
    policy: Policy, view: QueueView, now: float, more: int, spare_s: float, oldest_at: float
) -> None:
    look = policy.decide(view._replace(depth=None), now)
    if not isinstance(look, Look) or look.then is None:
        return
    assert look.least >= 1
    # Rounding must not bring the deadline nearer.
    due_at = now + look.calm_s + spare_s + 1e-6
    seen = view._replace(depth=look.least + more, due_at=due_at, oldest_at=oldest_at)
    decision = policy.decide(seen, now)
    assert isinstance(decision, Dispatch)
    assert decision.size == look.then.size
    assert 0 <= look.then.margin_s <= view.learnt.time.predict(min(seen.depth or 0, decision.size)) + 1e-9


@POLICIES
@given(view=views, now=seconds)
def test_claims_ahead_only_full_batches_within_the_lead(policy: Policy, view: QueueView, now: float) -> None:
    decision = policy.decide(view, now)
    if view.in_hand and isinstance(decision, Dispatch):
        assert view.in_hand == 1
        assert view.depth is not None
        assert view.depth >= decision.size
        assert decision.reason is Reason.FULL
        assert now >= view.free_at - LEAD_S - view.read_s
        assert view.batch_s >= 2 * LEAD_S or view.read_s >= LEAD_S


@POLICIES
@given(view=views, now=seconds)
def test_a_full_batch_goes_to_a_free_executor(policy: Policy, view: QueueView, now: float) -> None:
    if view.in_hand == 0 and view.depth is not None and view.depth >= MAX:
        assert isinstance(policy.decide(view, now), Dispatch)


@POLICIES
@given(view=views, now=seconds)
def test_nobody_is_refused_without_need(policy: Policy, view: QueueView, now: float) -> None:
    """At most those who would be late even if their batch began at once, or behind the one that computes."""
    decision = policy.decide(view, now)
    if isinstance(decision, Dispatch):
        behind_s = max(0.0, view.free_at - now) if view.in_hand else 0.0
        assert 0 <= decision.margin_s <= behind_s + view.learnt.time.predict(MAX) + 1e-9


@WITH_WINDOW
@given(view=views, now=seconds)
def test_what_is_due_is_not_held_back_from_a_free_executor(policy: Policy, view: QueueView, now: float) -> None:
    if view.in_hand == 0 and view.depth and now >= view.oldest_at + WINDOW_S:
        assert isinstance(policy.decide(view, now), Dispatch)


@WITH_WINDOW
@given(view=views, now=seconds)
def test_no_window_is_longer_than_the_configured_maximum(policy: Policy, view: QueueView, now: float) -> None:
    decision = policy.decide(view, now)
    if view.in_hand == 0 and view.depth and isinstance(decision, Wait):
        assert decision.until <= view.oldest_at + WINDOW_S


CLOSING = [each for each in [*WINDOWED, IDLE, ADAPTIVE] if each is not FIXED]


@pytest.mark.parametrize("policy", CLOSING, ids=lambda policy: type(policy).__name__)
@given(view=views, now=seconds)
def test_no_deadline_is_waited_past_with_a_free_executor(policy: Policy, view: QueueView, now: float) -> None:
    """When the time that is left is what the batch will take, it leaves."""
    decision = policy.decide(view, now)
    if view.in_hand == 0 and view.depth and isinstance(decision, Wait):
        assert decision.until <= view.due_at - view.learnt.time.predict(view.depth) + 1e-9


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


@POLICIES
def test_the_time_of_reading_payloads_comes_before_the_lead(policy: Policy) -> None:
    slow = QueueView(MAX, in_hand=1, free_at=1.0, batch_s=0.5, read_s=0.1)
    look_at = 1.0 - LEAD_S - 0.1
    assert policy.decide(slow, 0.8) == Wait(until=pytest.approx(look_at))
    assert isinstance(policy.decide(slow, 0.9), Dispatch)
    # A short batch is worth it, too, if reading is as long.
    short = QueueView(MAX, in_hand=1, free_at=1.0, batch_s=LEAD_S, read_s=LEAD_S)
    assert isinstance(policy.decide(short, 0.999), Dispatch)


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
    learner = Learner(policy)
    sizes = (0, 0)
    now = free_at = 0.0
    while coming or queue:
        while coming and coming[0] <= now:
            queue.append(coming.popleft())
        while done_at and done_at[0] <= now:
            free_at = done_at.popleft()
            learner.finished(len(batches[-1].arrivals), batch_s, free_at)
        learner.looked(len(queue), now)
        view = QueueView(
            len(queue),
            queue[0] if queue else now,
            len(done_at),
            done_at[0] if done_at else free_at,
            batch_s if batches else 0.0,
            max(sizes),
            learnt=learner.learnt,
        )
        decision = policy.decide(view, now)
        if isinstance(decision, Dispatch):
            taken = [queue.popleft() for _ in range(min(decision.size, len(queue)))]
            assert taken, "nothing to claim"
            learner.claimed(len(taken), len(queue), now - taken[0], now - taken[len(taken) // 2], now)
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


@WITH_WINDOW
@given(gaps=gaps, batch_s=durations)
def test_a_window_bounds_every_wait_for_a_free_executor(policy: Policy, gaps: list[float], batch_s: float) -> None:
    for batch in simulate(policy, arrivals_of(gaps), batch_s):
        assert batch.ahead or batch.at <= max(batch.arrivals[0] + WINDOW_S, batch.free_at)


@given(gaps=gaps, batch_s=durations)
def test_before_the_end_of_a_fixed_window_only_full_batches_leave(gaps: list[float], batch_s: float) -> None:
    for batch in simulate(FIXED, arrivals_of(gaps), batch_s):
        assert batch.at >= batch.arrivals[0] + WINDOW_S or len(batch.arrivals) == MAX


@given(gaps=gaps, batch_s=durations)
def test_gathering_is_bounded_from_the_moment_the_executor_was_free(gaps: list[float], batch_s: float) -> None:
    for batch in simulate(ADAPTIVE, arrivals_of(gaps), batch_s):
        assert batch.ahead or batch.at <= max(batch.arrivals[0], batch.free_at + WINDOW_S)
