"""Large bodies: one at a time, with a rest after each, and refused ones on their key's account."""

from __future__ import annotations

import gevent
import pytest

from config.tiers import Tier
from tasks.errors import RateLimited, ServiceOverloaded
from tasks.protocol.caller import ANYBODY, Caller
from webapp.body_budget import LARGE_BYTES, MAX_WAITING, BodyBudget

_ALICE = Caller("key", "alice", Tier.PAID)


def test_one_at_a_time() -> None:
    large = BodyBudget(lambda _: 0.0)
    inside = 0
    most = 0

    def read() -> None:
        nonlocal inside, most
        with large.turn(LARGE_BYTES):
            inside += 1
            most = max(most, inside)
            gevent.idle()
            inside -= 1

    gevent.joinall([gevent.spawn(read) for _ in range(MAX_WAITING)], raise_error=True)
    assert most == 1


def test_small_ones_do_not_wait() -> None:
    large = BodyBudget(lambda _: 0.0)
    with large.turn(LARGE_BYTES), large.turn(LARGE_BYTES - 1):
        pass


def test_no_more_wait_than_there_is_memory_for() -> None:
    large = BodyBudget(lambda _: 0.0)

    def read() -> None:
        with large.turn(LARGE_BYTES):
            pass

    with large.turn(LARGE_BYTES):
        waiting = [gevent.spawn(read) for _ in range(MAX_WAITING)]
        gevent.idle()
        with pytest.raises(ServiceOverloaded):
            read()
    gevent.joinall(waiting, raise_error=True)
    read()


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
