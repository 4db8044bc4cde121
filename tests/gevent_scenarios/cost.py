"""The cost of waiting. In Celery each reply wakes every greenlet that waits for any (celery/celery#4999)."""

from __future__ import annotations

import time
from functools import partial

import gevent

from tests.gevent_scenarios.frontend_fixture import NOBODY, FrontendFixture, all_of
from tests.waiting import wait_until


def five_hundred_waiters_with_nothing_to_do_cost_almost_nothing(frontend: FrontendFixture) -> None:
    waiting = [gevent.spawn(frontend.ask, i, NOBODY) for i in range(500)]
    wait_until(lambda: frontend.depth() == 500)
    began = time.process_time()
    gevent.sleep(3.0)
    assert time.process_time() - began < 0.5
    gevent.killall(waiting)


def a_reply_costs_the_same_however_many_wait(frontend: FrontendFixture) -> None:
    load(frontend, callers=50, rounds=10)
    few = load(frontend, callers=50, rounds=40)
    many = load(frontend, callers=800, rounds=3)
    assert many < 2 * few, f"{few * 1e6:.0f} µs of CPU a request for 50 callers, {many * 1e6:.0f} for 800"


def idle_waiters_cost_nothing_while_others_are_answered(frontend: FrontendFixture) -> None:
    load(frontend, callers=20, rounds=10)
    alone = load(frontend, callers=20, rounds=50)
    waiting = [gevent.spawn(frontend.ask, i, NOBODY) for i in range(800)]
    wait_until(lambda: frontend.depth() == 800)
    beside = load(frontend, callers=20, rounds=50)
    assert beside < 2 * alone, f"{alone * 1e6:.0f} µs of CPU a request, {beside * 1e6:.0f} beside 800 that wait"
    gevent.killall(waiting)


def load(frontend: FrontendFixture, callers: int, rounds: int) -> float:
    """CPU seconds of this process per request; the worker is another process."""

    def caller(number: int) -> None:
        for _ in range(rounds):
            frontend.ask(number)

    began = time.process_time()
    all_of(partial(caller, number) for number in range(callers))
    return (time.process_time() - began) / (callers * rounds)


def connections_do_not_grow_with_the_callers(frontend: FrontendFixture) -> None:
    """celery/celery#6819: a backend, its pool and its subscription for every greenlet."""
    all_of(partial(frontend.ask, i) for i in range(500))
    mine = [each for each in frontend.redis.client_list() if each["db"] == "0"]
    # Connections of the frontend, the worker and the test: a handful each.
    assert len(mine) < 25
