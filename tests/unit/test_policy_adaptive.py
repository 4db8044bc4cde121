"""The adaptive policy: callers who have just been answered are let back in before the next batch leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batching.policy import Adaptive, Dispatch, Learnt, Look, QueueView, Reason, Wait

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
    assert POLICY.decide(view(None), 0.005) == Look()


def test_a_lone_caller_never_waits() -> None:
    assert isinstance(POLICY.decide(view(1, recent=1), 0.0001), Dispatch)
    assert isinstance(POLICY.decide(view(None, recent=1), 0.0001), Dispatch)


def test_the_first_of_a_crowd_is_joined_by_the_others() -> None:
    crowds = Learnt(returning=0.0, company=0.9)
    early, whole = (QueueView(n, oldest_at=5.0, free_at=0.0, batch_s=0.05, recent=48, learnt=crowds) for n in (1, 48))
    assert POLICY.decide(early, 5.001) == Wait(until=5.01)
    assert POLICY.decide(whole, 5.001) == Dispatch(64, Reason.IDLE)
    assert POLICY.decide(early, 5.01) == Dispatch(64, Reason.IDLE)
    assert POLICY.decide(QueueView(None, recent=48, batch_s=0.05, learnt=crowds), 5.0) == Look()


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
