"""Large bodies: one at a time, with a rest after each, and refused ones on their key's account."""

from __future__ import annotations

import gevent
import pytest

from config.tiers import Tier
from tasks.errors import CallerGone, RateLimited, ServiceOverloaded
from tasks.protocol.caller import ANYBODY, Caller
from webapp.body_budget import MAX_IN_FLIGHT_BYTES, MAX_WAITING, MAX_WAITING_OF_A_KEY, BodyBudget

_ALICE = Caller("key", "alice", Tier.PAID)


def test_one_at_a_time() -> None:
    large = BodyBudget(lambda _: 0.0)
    inside = 0
    most = 0

    def read(key_id: str) -> None:
        nonlocal inside, most
        with large.turn(key_id):
            inside += 1
            most = max(most, inside)
            gevent.idle()
            inside -= 1

    gevent.joinall([gevent.spawn(read, str(number % 4)) for number in range(MAX_WAITING)], raise_error=True)
    assert most == 1


def test_its_turn_ends_once() -> None:
    large = BodyBudget(lambda _: 0.0)
    with large.turn("k") as turn:
        turn.end()
        waiting = gevent.spawn(large.turn, "k")
        waiting.join(1)
        turn.end()
    assert waiting.ready()
    with gevent.Timeout(0.05, False):
        large.turn("k")
        pytest.fail("two had their turn at once")


def test_the_next_waits_until_there_is_room_in_the_queue() -> None:
    large = BodyBudget(lambda _: 0.0)
    first = large.turn("k")
    first.end(in_flight=MAX_IN_FLIGHT_BYTES - 1)
    second = large.turn("k")
    second.end(in_flight=1)
    waiting = gevent.spawn(large.turn, "k")
    gevent.idle()
    assert not waiting.ready()
    first.leave()
    first.leave()
    waiting.join(1)
    waiting.get(block=False).leave()
    second.leave()


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.body_budget.MAX_WAIT_S", 0.02)
    large = BodyBudget(lambda _: 0.0)
    with large.turn("k") as turn:
        turn.end(in_flight=MAX_IN_FLIGHT_BYTES)
        for _ in range(2):
            with pytest.raises(ServiceOverloaded):
                large.turn("k")
    large.turn("k").leave()


def test_what_one_key_has_in_the_queue_keeps_no_other_waiting() -> None:
    large = BodyBudget(lambda _: 0.0)
    with large.turn("greedy") as turn:
        turn.end(in_flight=MAX_IN_FLIGHT_BYTES)
        waiting = [gevent.spawn(large.turn, "greedy") for _ in range(MAX_WAITING_OF_A_KEY)]
        gevent.idle()
        for _ in range(3):
            large.turn("another").leave()
        assert not any(each.ready() for each in waiting)
    for each in waiting:
        each.get(timeout=1).leave()
    assert not large._keys


def test_nothing_is_prepared_for_a_caller_who_is_gone() -> None:
    large = BodyBudget(lambda _: 0.0)
    with pytest.raises(CallerGone):
        large.turn("k", lambda: True)
    large.turn("k", lambda: False).leave()


def test_no_more_wait_than_there_is_memory_for() -> None:
    large = BodyBudget(lambda _: 0.0)

    def read(key_id: str) -> None:
        with large.turn(key_id):
            pass

    with large.turn("k"):
        waiting = [gevent.spawn(read, "a") for _ in range(MAX_WAITING_OF_A_KEY)]
        gevent.idle()
        with pytest.raises(ServiceOverloaded):
            read("a")
        waiting += [gevent.spawn(read, "b") for _ in range(MAX_WAITING - MAX_WAITING_OF_A_KEY)]
        gevent.idle()
        with pytest.raises(ServiceOverloaded):
            read("c")
    gevent.joinall(waiting, raise_error=True)
    read("c")


def test_a_refused_one_counts_against_its_key() -> None:
    counted: list[Caller] = []

    def charge(caller: Caller) -> float:
        counted.append(caller)
        return 0.0

    large = BodyBudget(charge)
    large.refused(_ALICE)
    large.admit(_ALICE)
    assert counted == [_ALICE]
    large.refused(ANYBODY[Tier.PAID])
    assert counted == [_ALICE], "with auth off nobody has a rate"


def test_a_key_over_its_rate_sends_no_large_body_for_so_long() -> None:
    large = BodyBudget(lambda _: 30.0)
    with pytest.raises(RateLimited) as refused:
        large.refused(_ALICE)
    assert refused.value.retry_after_s == 30.0
    with pytest.raises(RateLimited) as refused:
        large.admit(_ALICE)
    assert 25.0 < (refused.value.retry_after_s or 0) <= 30.0
    large.admit(Caller("another", "alice", Tier.PAID))
    large.admit(ANYBODY[Tier.PAID])
