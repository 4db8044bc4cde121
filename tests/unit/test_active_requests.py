"""Celery's set of active requests under the claim loops."""

from __future__ import annotations

from types import SimpleNamespace
from weakref import WeakSet

import pytest
from celery.worker import state as worker_state
from celery.worker.consumer.consumer import Consumer

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Request
from config.tiers import Tier
from tasks.celery.active import ActiveRequests, make_walkable
from tasks.observers.metrics import ActiveRequest


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def things() -> list[Thing]:
    return [Thing() for _ in range(6)]


@pytest.fixture
def active() -> ActiveRequests:
    found: WeakSet[Thing] = WeakSet()
    assert make_walkable(found) is found
    return make_walkable(found)


def test_it_may_change_while_somebody_walks_through(active: ActiveRequests, things: list[Thing]) -> None:
    active.update(things[:3])
    walk = iter(active)
    seen = [next(walk)]
    active.update(things[3:])
    active.difference_update(things[:2])
    active.add(Thing())
    seen += walk

    assert set(seen) <= set(things[:3])
    assert set(active) == set(things[2:])
    assert len(active) == 4


def test_what_nobody_holds_any_more_is_gone(active: ActiveRequests, things: list[Thing]) -> None:
    active.update(things)
    walk = iter(active)
    next(walk)
    del things[1:]
    active.update([])
    del walk
    assert len(active) <= 2
    things.clear()
    assert list(active) == []


def test_a_batch_is_there_as_a_whole_and_shown_to_whoever_looks(active: ActiveRequests, things: list[Thing]) -> None:
    made: list[int] = []

    def make() -> list[Thing]:
        made.append(1)
        return things[:3]

    active.enter("b1", 3, make)
    active.add(things[5])
    assert (len(active), made) == (4, [])
    # Celery has bound some of WeakSet's own methods before the set changed its ways.
    assert not WeakSet.__contains__(active, things[0])
    assert set(active) == {*things[:3], things[5]}
    assert WeakSet.__contains__(active, things[0])
    assert things[4] not in active
    assert active.look("b1") == things[:3]
    assert len(active) == 4
    walk = iter(active)
    seen = [next(walk)]
    active.enter("b2", 1, lambda: [things[3]])
    assert active.leave("b1") == 3
    assert active.leave("b1") == 0
    assert active.look("b1") == ()
    seen += walk
    assert set(seen) <= set(things)
    assert set(active) == {things[3], things[5]}
    assert made == [1]
    active.clear()
    assert (len(active), list(active)) == (0, [])


def test_celery_can_do_with_an_active_request_what_it_does_with_its_own() -> None:
    request = Request("t1", Tier.PAID, 1, b"1", b"{}")
    batch = BatchInfo("b1", "echo", "1", 1, Reason.FULL, 0)
    shown = ActiveRequest(request, batch, 0.0)
    make_walkable(worker_state.active_requests).enter("b1", 1, lambda: [shown])
    # A cold shutdown: `Consumer.cancel_active_requests` asks each for its task and cancels it.
    Consumer.cancel_active_requests(SimpleNamespace(pool=None))
    # A new connection to the broker: `celery.worker.consumer.events.Events.start` gives each its dispatcher.
    shown.eventer = object()
    make_walkable(worker_state.active_requests).leave("b1")
