"""The adaptive policy: callers who have just been answered are let back in before the next batch leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batching.policy import Adaptive, BatchTime, Dispatch, Learnt, Look, QueueView, Reason, Wait

POLICY = Adaptive(max_batch_size=64, max_wait_s=0.01)


def view(depth: int | None, *, free_at: float = 0.0, batch_s: float = 0.05, recent: int = 32) -> QueueView:
    return QueueView(depth, oldest_at=0.0, free_at=free_at, batch_s=batch_s, recent=recent)


def test_gathers_while_fewer_are_back_than_recent_batches_held() -> None:
    assert POLICY.decide(view(5), 0.002) == Wait(until=0.01)
    assert POLICY.decide(view(32), 0.002) == Dispatch(64, Reason.IDLE)
    assert POLICY.decide(view(64), 0.002) == Dispatch(64, Reason.FULL)


def test_goes_when_the_gathering_is_over_without_another_look() -> None:
    assert POLICY.decide(view(5), 0.01) == Dispatch(64, Reason.IDLE)
    assert POLICY.decide(view(None), 0.01) == Dispatch(64, Reason.IDLE)
    assert isinstance(POLICY.decide(view(None), 0.005), Look)


def test_a_lone_caller_never_waits() -> None:
    assert isinstance(POLICY.decide(view(1, recent=1), 0.0001), Dispatch)
    assert isinstance(POLICY.decide(view(None, recent=1), 0.0001), Dispatch)


def test_the_first_of_a_crowd_is_joined_by_the_others() -> None:
    crowds = Learnt(closed_loop_share=0.0, crowding=0.9)
    early, whole = (QueueView(n, oldest_at=5.0, free_at=0.0, batch_s=0.05, recent=48, learnt=crowds) for n in (1, 48))
    assert POLICY.decide(early, 5.001) == Wait(until=5.01)
    assert POLICY.decide(whole, 5.001) == Dispatch(64, Reason.IDLE)
    assert POLICY.decide(early, 5.01) == Dispatch(64, Reason.IDLE)
    look = POLICY.decide(QueueView(None, recent=48, batch_s=0.05, learnt=crowds), 5.0)
    assert look == Look(Dispatch(64, Reason.IDLE), least=48)


def test_where_nobody_knows_how_many_come_the_wait_is_short() -> None:
    """Long ones would deceive several executors: in 20 ms as many come as if they had come back."""
    crowds, slow = Learnt(closed_loop_share=0.0, crowding=0.9), Adaptive(64, 0.05)
    first = QueueView(1, oldest_at=5.0, free_at=0.0, batch_s=0.2, recent=48, learnt=crowds)
    assert slow.decide(first, 5.001) == Wait(until=5.01)
    # A loop has just begun.
    assert slow.decide(QueueView(1, oldest_at=5.0, free_at=5.0, batch_s=0.2, recent=48), 5.001) == Wait(until=5.01)


def known(a_s: float, b_s: float, callers: int, median_return_s: float = 0.01) -> Learnt:
    return Learnt(
        closed_loop_share=1.0, callers=callers, median_return_s=median_return_s, time=BatchTime(a_s, b_s, weight=20.0)
    )


def test_all_who_are_known_are_waited_for_and_not_only_as_many_as_came_of_late() -> None:
    """64 who have fallen apart into 50 and 14: the 14 wait when the 50 are answered, and all go together."""
    policy = Adaptive(64, 0.02)
    learnt = known(0.05, 0.0, callers=64)
    some, all_ = (QueueView(n, free_at=1.0, batch_s=0.05, recent=50, learnt=learnt) for n in (50, 64))
    assert policy.decide(some, 1.002) == Wait(until=1.0 + 0.3 * 0.05)
    assert policy.decide(all_, 1.002) == Dispatch(64, Reason.FULL)
    # One has left: the 63 go when all are there.
    fewer = QueueView(63, free_at=1.0, batch_s=0.05, recent=64, learnt=known(0.05, 0.0, callers=63))
    assert policy.decide(fewer, 1.002) == Dispatch(64, Reason.IDLE)


def test_halves_in_turn_where_they_are_served_sooner() -> None:
    """With 64 callers who need 15 ms to come back, and a model that takes 2 ms for a batch and 1 for each input."""
    policy = Adaptive(64, 0.02)
    cheap, dear = known(0.002, 0.001, callers=64), known(0.05, 0.0, callers=64)
    half = QueueView(32, free_at=1.0, batch_s=0.034, recent=32, learnt=cheap)
    assert policy.decide(half, 1.0) == Dispatch(32, Reason.IDLE)
    # And the other half behind it, before it has ended.
    assert policy.decide(QueueView(40, in_hand=1, free_at=1.0, batch_s=0.034, recent=32, learnt=cheap), 0.996) == (
        Dispatch(32, Reason.FULL)
    )
    assert isinstance(policy.decide(QueueView(32, free_at=1.0, batch_s=0.05, recent=32, learnt=dear), 1.0), Wait)


@given(
    depth=st.integers(0, 200),
    callers=st.integers(0, 300),
    recent=st.integers(0, 64),
    a_s=st.floats(0, 1),
    b_s=st.floats(0, 0.1),
    median_return_s=st.floats(0, 1),
    since_s=st.floats(0, 20),
    max_wait_s=st.floats(0, 1),
    in_hand=st.integers(0, 2),
)
def test_nobody_is_waited_for_longer_than_one_batch_more_would_take(
    depth: int,
    callers: int,
    recent: int,
    a_s: float,
    b_s: float,
    median_return_s: float,
    since_s: float,
    max_wait_s: float,
    in_hand: int,
) -> None:
    policy = Adaptive(64, max_wait_s)
    learnt = known(a_s, b_s, callers, median_return_s)
    decision = policy.decide(
        QueueView(
            depth, oldest_at=0.0, in_hand=in_hand, batch_s=a_s + 64 * b_s, free_at=0.0, recent=recent, learnt=learnt
        ),
        since_s,
    )
    if isinstance(decision, Dispatch):
        assert 1 <= decision.size <= 64
        assert decision.size >= min(64, -(-callers // 2))
    if depth and not in_hand:
        bound = min(max(policy.least_s, min(a_s, policy.gather * (a_s + 64 * b_s))), max_wait_s)
        if since_s >= bound or depth >= min(64, callers or recent):
            assert isinstance(decision, Dispatch)
        if isinstance(decision, Wait):
            assert since_s < decision.until <= bound


@given(
    depth=st.none() | st.integers(1, 63),
    batch_s=st.floats(1e-6, 0.0015),
    crowding=st.floats(0, 1),
    closed_loop=st.floats(0, 1),
    recent=st.integers(0, 64),
    callers=st.integers(0, 256),
)
def test_a_quick_model_gets_what_waits_at_once(
    depth: int | None, batch_s: float, crowding: float, closed_loop: float, recent: int, callers: int
) -> None:
    """A wait costs a look, and the time in which the frontend and the worker could both be busy."""
    learnt = known(batch_s / 2, batch_s / 128, callers)._replace(crowding=crowding, closed_loop_share=closed_loop)
    free = QueueView(depth, oldest_at=0.0, in_hand=0, batch_s=batch_s, free_at=0.0, recent=recent, learnt=learnt)
    assert isinstance(POLICY.decide(free, 0.0), Dispatch)


def test_nothing_waits_nothing_to_do() -> None:
    assert POLICY.decide(view(0), 5.0) == Wait()


@given(
    depth=st.integers(1, 200),
    batch_s=st.floats(0, 10),
    recent=st.integers(0, 64),
    since_s=st.floats(0, 20),
    max_wait_s=st.floats(0, 1),
)
def test_the_wait_is_bounded_by_a_share_of_the_batch_and_by_the_maximum(
    depth: int, batch_s: float, recent: int, since_s: float, max_wait_s: float
) -> None:
    policy = Adaptive(64, max_wait_s)
    decision = policy.decide(view(depth, batch_s=batch_s, recent=recent), since_s)
    bound = min(max(policy.least_s, policy.gather * batch_s), max_wait_s)
    if since_s >= bound or depth >= min(64, max(recent, 1)):
        assert isinstance(decision, Dispatch)
    if isinstance(decision, Wait):
        assert since_s < decision.until <= bound
    if isinstance(decision, Dispatch):
        assert decision.size <= 64


def test_while_the_executor_computes_only_a_full_batch_is_claimed_ahead() -> None:
    busy = QueueView(64, oldest_at=0.0, in_hand=1, free_at=0.05, batch_s=0.05, recent=64)
    assert POLICY.decide(busy, 0.01) == Wait(until=0.05 - POLICY.lead_s)
    assert POLICY.decide(busy, 0.048) == Dispatch(64, Reason.FULL)
    part = QueueView(63, oldest_at=0.0, in_hand=1, free_at=0.05, batch_s=0.05, recent=64)
    assert POLICY.decide(part, 0.048) == Wait()
