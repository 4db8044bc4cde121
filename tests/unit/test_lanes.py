"""Lanes: a lane whose calls hang delays no other, and nothing is left of one without calls."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from tasks.lanes import Lanes
from tests.waiting import wait_until


def test_a_lane_that_hangs_delays_no_other() -> None:
    lanes: Lanes[int] = Lanes(2, 4)
    released = threading.Event()
    hanging = [lanes.submit("slow", lambda: int(released.wait(10))) for _ in range(6)]
    assert [lanes.submit("quick", lambda: 7).result(10) for _ in range(20)] == [7] * 20
    # Its second thread may have begun no sooner than all of these.
    wait_until(lambda: sum(each.running() for each in hanging) >= 2)
    assert sum(each.running() for each in hanging) == 2
    released.set()
    assert [each.result(10) for each in hanging] == [1] * 6


def test_a_busy_lane_gives_way_to_another_after_each_call() -> None:
    lanes: Lanes[None] = Lanes(1, 1)
    done: list[str] = []
    began = threading.Event()
    first = lanes.submit("busy", lambda: began.wait(10) and done.append("busy"))
    rest = [lanes.submit("busy", lambda: done.append("busy")) for _ in range(3)]
    other = lanes.submit("other", lambda: done.append("other"))
    began.set()
    wait([first, *rest, other], 10)
    assert done == ["busy", "other", "busy", "busy", "busy"]


def test_no_more_run_at_once_than_may_and_none_is_forgotten() -> None:
    lanes: Lanes[int] = Lanes(3, 5)
    lock, running, most = threading.Lock(), 0, 0

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return number

    futures = [lanes.submit(f"lane {n % 4}", lambda n=n: call(n)) for n in range(200)]  # type: ignore[misc]
    assert [each.result(30) for each in futures] == list(range(200))
    assert 1 < most <= 5
    # Neither threads nor lines are left.
    wait_until(lambda: not lanes._threads, patience_s=10)
    assert not lanes._waiting
    assert not lanes._places


def test_an_error_is_for_whoever_asked_and_a_call_that_is_cancelled_is_not_made() -> None:
    lanes: Lanes[None] = Lanes(1, 1)
    released, made = threading.Event(), []
    first = lanes.submit("a", lambda: (released.wait(10), 1 / 0)[0] and None)
    second = lanes.submit("a", lambda: made.append(2))
    third = lanes.submit("a", lambda: made.append(3))
    assert second.cancel()
    released.set()
    with pytest.raises(ZeroDivisionError):
        first.result(10)
    third.result(10)
    assert made == [3]
