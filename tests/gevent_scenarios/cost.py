"""The cost of waiting. In Celery each reply wakes every greenlet that waits for any (celery/celery#4999)."""

from __future__ import annotations

import time
from functools import partial

import gevent

from tests.gevent_scenarios.frontend_fixture import NOBODY, FrontendFixture, all_of
from tests.shards import servers_of
from tests.waiting import wait_until


def five_hundred_waiters_with_nothing_to_do_cost_almost_nothing(frontend: FrontendFixture) -> None:
    waiting = [gevent.spawn(frontend.ask, i, NOBODY) for i in range(500)]
    wait_until(lambda: frontend.depth() == 500)
    began = time.process_time()
    gevent.sleep(3.0)
    assert time.process_time() - began < 0.5
    gevent.killall(waiting)


def a_reply_costs_the_same_however_many_wait(frontend: FrontendFixture) -> None:
    # Eight hundred greenlets for the first time cost twice as much.
    load(frontend, callers=800, rounds=1)
    # In turn, and the least of each: what else the machine does costs CPU time too.
    rounds = [(load(frontend, callers=50, rounds=40), load(frontend, callers=800, rounds=3)) for _ in range(3)]
    few, many = map(min, zip(*rounds, strict=True))
    # About 1.4 times; ten times, if each reply woke all.
    assert many < 4 * few, f"{few * 1e6:.0f} µs of CPU a request for 50 callers, {many * 1e6:.0f} for 800"


def idle_waiters_cost_nothing_while_others_are_answered(frontend: FrontendFixture) -> None:
    load(frontend, callers=20, rounds=10)
    alone, beside = map(min, zip(*(alone_and_beside(frontend) for _ in range(3)), strict=True))
    # Seventeen times, if each reply woke all.
    assert beside < 4 * alone, f"{alone * 1e6:.0f} µs of CPU a request, {beside * 1e6:.0f} beside 800 that wait"


def alone_and_beside(frontend: FrontendFixture) -> tuple[float, float]:
    """The load alone, and beside 800 that wait."""
    alone = load(frontend, callers=20, rounds=20)
    before = frontend.depth()
    waiting = [gevent.spawn(frontend.ask, i, NOBODY) for i in range(800)]
    wait_until(lambda: frontend.depth() == before + 800)
    beside = load(frontend, callers=20, rounds=20)
    gevent.killall(waiting)
    return alone, beside


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
    # Connections of the frontend, the worker and the test: a handful each.
    for server in servers_of(frontend.redis):
        assert len([each for each in server.client_list() if each["db"] == "0"]) < 25
