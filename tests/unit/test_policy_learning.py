"""A claim loop learns the rate, how busy it is, and whether callers come back; one controller learns, too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import (
    Adaptive,
    Claimed,
    EwmaWindow,
    Learner,
    Learnt,
    PidWindow,
    QueueView,
    Speculative,
    Wait,
    WhenIdle,
)
from batching.policy.published.pid import Controller

MAX_WAIT_S = 0.1


@pytest.mark.parametrize("rate", [20, 200, 2000])
def test_the_rate_is_that_of_the_arrivals(rate: int) -> None:
    learner = Learner(WhenIdle(64))
    for n in range(1, 41):
        now, came = n * 0.1, n * rate // 10
        learner.looked(came - (came - rate // 10), now)
        learner.claimed(rate // 10, 0, 0.0, 0.0, now)
    assert learner.learnt.rate == pytest.approx(rate, rel=0.02)


def test_the_rate_falls_when_nobody_comes() -> None:
    learner = Learner(WhenIdle(64))
    learner.looked(0, 0.0)
    learner.looked(100, 0.1)
    high = learner.learnt.rate
    learner.looked(100, 0.6)
    assert learner.learnt.rate < high / 3


def test_requests_that_others_took_do_not_make_it_negative() -> None:
    learner = Learner(WhenIdle(64))
    learner.looked(50, 0.0)
    learner.looked(0, 0.1)
    assert learner.learnt.rate == 0


@given(busy=st.floats(0.05, 1))
def test_utilisation_is_the_share_of_time_that_is_computed(busy: float) -> None:
    learner = Learner(WhenIdle(64))
    for n in range(200):
        learner.finished(8, 0.1 * busy, n * 0.1)
    assert learner.learnt.utilisation == pytest.approx(busy, abs=0.02)


@pytest.mark.parametrize(("after_s", "closed_loop_share"), [(0.002, True), (0.035, False), (0.06, False)])
def test_callers_who_come_back_are_known_by_when_they_come(after_s: float, closed_loop_share: bool) -> None:
    """Batches of 70 ms: the middle request of each comes so long after the end of the one before."""
    learner = Learner(WhenIdle(64))
    for n in range(40):
        end = n * 0.1
        learner.finished(8, 0.07, end)
        learner.claimed(8, 0, 0.07, 0.07 - after_s, end + 0.07)
    assert (learner.learnt.closed_loop_share > 0.9) is closed_loop_share


def test_callers_are_known_though_they_have_fallen_apart_into_two_groups() -> None:
    """51 and 13 of them, 20 ms + 0.5 ms each, in turn: each group is back 9 ms after its own answers."""
    learner, sizes = Learner(WhenIdle(64)), (51, 13)
    now, back_at = 0.0, 0.0
    for n in range(40):
        size, took = sizes[n % 2], 0.02 + 0.0005 * sizes[n % 2]
        learner.claimed(size, 0, now - back_at, now - back_at, now)
        now, back_at = now + took, now + 0.009
        learner.finished(size, took, now)
        learner.looked(sizes[(n + 1) % 2], now + 0.001)
        assert n < 2 or learner.learnt.callers == 64
    assert learner.learnt.closed_loop_share >= 0.5
    assert learner.learnt.median_return_s == pytest.approx(0.009, abs=0.001)


def test_callers_are_counted_only_before_the_first_can_be_back() -> None:
    learner = Learner(WhenIdle(64))
    for n in range(20):
        learner.claimed(50, 0, 0.0, 0.0, n * 0.1)
        learner.finished(50, 0.05, n * 0.1 + 0.05)
        learner.looked(14, n * 0.1 + 0.051)
    assert learner.learnt.callers == 64
    for n in range(3):
        learner.claimed(50, 0, 0.0, 0.0, 3 + n * 0.1)
        learner.finished(50, 0.05, 3 + n * 0.1 + 0.05)
        learner.looked(40, 3 + n * 0.1 + 0.06)
        # For two batches they may be the same.
        assert learner.learnt.callers == (64 if n < 2 else 0)


def test_a_lone_caller_who_is_back_at_once_is_not_counted_twice() -> None:
    """Batches of 50 ms; its next request comes 2 ms after each, and is what the loop then looks for and claims."""
    learner, policy = Learner(WhenIdle(64)), Adaptive(64)
    for n in range(20):
        end = n * 0.06
        learner.finished(1, 0.05, end)
        learner.looked(1, end + 0.0021)
        view = QueueView(1, end + 0.002, free_at=end, batch_s=0.05, recent=1, learnt=learner.learnt)
        waits = isinstance(policy.decide(view, end + 0.0021), Wait)
        learner.claimed(1, 0, 0.0001, 0.0001, end + 0.0021)
    assert learner.learnt.callers == 0
    assert not waits


def test_who_came_by_itself_while_one_was_served_is_no_caller_who_comes_back() -> None:
    learner = Learner(WhenIdle(64))
    for n in range(20):
        learner.claimed(1, 0, 0.012, 0.012, n * 0.05)
        learner.finished(1, 0.02, n * 0.05 + 0.02)
        learner.looked(1, n * 0.05 + 0.02)
    assert learner.learnt.callers == 2
    assert learner.learnt.closed_loop_share < 0.1


@pytest.mark.parametrize("first", [1, 48])
@pytest.mark.parametrize(("spread_s", "crowding"), [(0.004, True), (0.05, False)])
def test_those_who_come_together_are_known(first: int, spread_s: float, crowding: bool) -> None:
    """48 within `spread_s`, twice a second: each leaves whole, or its first request alone and the others behind it."""
    learner = Learner(WhenIdle(64))
    for n in range(20):
        at, took = 0.5 * n, 0.02 + 0.0005 * first
        learner.claimed(first, 0, spread_s if first > 1 else 0.0, spread_s / 2 if first > 1 else 0.0, at)
        learner.finished(first, took, at + took)
        if first == 1:
            left = at + took
            learner.claimed(47, 0, took, left - (at + spread_s / 2), left)
            learner.finished(47, 0.044, left + 0.044)
    assert (learner.learnt.crowding >= 0.5) is crowding


def test_single_requests_have_no_company() -> None:
    learner = Learner(WhenIdle(64))
    for n in range(20):
        learner.claimed(1, 0, 0.0, 0.0, 0.2 * n)
        learner.finished(1, 0.02, 0.2 * n + 0.02)
    assert learner.learnt.crowding == 0.0


def claimed(at: float, waited_s: float) -> Claimed:
    return Claimed(at, 8, waited_s)


@given(
    waits=st.lists(st.floats(0, 5), max_size=60),
    gaps=st.floats(0, 10),
    kp=st.floats(0, 100),
    ki=st.floats(0, 100),
    kd=st.floats(0, 100),
)
def test_the_controller_stays_within_its_bounds(
    waits: list[float], gaps: float, kp: float, ki: float, kd: float
) -> None:
    policy = PidWindow(64, MAX_WAIT_S, kp=kp, ki=ki, kd=kd)
    memory: object = None
    for n, waited_s in enumerate(waits):
        memory = policy.learn(memory, claimed(n * gaps, waited_s))
        assert isinstance(memory, Controller)
        assert 0 <= memory.window_s <= MAX_WAIT_S
        assert 0 <= memory.integral_s <= MAX_WAIT_S


def settle(policy: PidWindow, memory: object, base_s: float, batches: int) -> tuple[object, list[float]]:
    """A queue where the oldest waits as long as the window says, and `base_s` more."""
    waits, now = [], 0.0
    for _ in range(batches):
        window_s = memory.window_s if isinstance(memory, Controller) else 0.0
        waits.append(window_s + base_s)
        now += 0.02 + waits[-1]
        memory = policy.learn(memory, claimed(now, waits[-1]))
    return memory, waits


@given(target_s=st.floats(0.005, 0.08), base_s=st.floats(0, 0.004))
def test_the_controller_settles_on_its_set_point(target_s: float, base_s: float) -> None:
    memory, waits = settle(PidWindow(64, MAX_WAIT_S, target_s=target_s), None, base_s, 400)
    assert waits[-1] == pytest.approx(target_s, rel=0.05)
    assert max(waits) <= 1.5 * target_s
    # A step of the set point, as an operator makes it.
    _, waits = settle(PidWindow(64, MAX_WAIT_S, target_s=target_s / 2 + 0.004), memory, base_s, 400)
    assert waits[-1] == pytest.approx(target_s / 2 + 0.004, rel=0.05)


def test_a_long_overload_does_not_wind_the_controller_up() -> None:
    policy = PidWindow(64, MAX_WAIT_S, target_s=0.02)
    memory, _ = settle(policy, None, 0.0, 400)
    memory, _ = settle(policy, memory, 1.0, 500)
    _, waits = settle(policy, memory, 0.0, 60)
    assert any(wait >= 0.8 * 0.02 for wait in waits)


def view(depth: int, rate: float, oldest_at: float = 0.0) -> QueueView:
    return QueueView(depth, oldest_at, free_at=-1.0, learnt=Learnt(rate=rate))


def test_the_ewma_window_grows_with_the_rate() -> None:
    policy = EwmaWindow(64, MAX_WAIT_S)
    until = [
        decision.until
        for rate in (64, 320, 640, 6400)
        if isinstance(decision := policy.decide(view(1, rate), 0.0), Wait)
    ]
    assert until == [pytest.approx(0.01), pytest.approx(0.05), pytest.approx(0.1), pytest.approx(0.1)]


def test_the_speculative_window_is_left_when_it_would_not_fill() -> None:
    policy = Speculative(64, 0.05)
    assert isinstance(policy.decide(view(10, rate=1200), 0.0), Wait)
    assert not isinstance(policy.decide(view(10, rate=1000), 0.0), Wait)
    # The same rate, with half of the window gone.
    assert not isinstance(policy.decide(view(10, rate=1200), 0.025), Wait)
