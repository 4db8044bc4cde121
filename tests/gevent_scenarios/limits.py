"""Callers with a key, and their refusals when they send too much."""

from __future__ import annotations

from functools import partial

from config.tiers import Tier
from tasks.errors import RateLimited
from tasks.protocol.caller import ANYBODY, Caller
from tests.gevent_scenarios.frontend_fixture import FrontendFixture, all_of, error_of, wait_all


def a_key_that_asks_too_often_is_refused_and_its_neighbours_are_not(frontend: FrontendFixture) -> None:
    # One more each minute: none while the scenario runs.
    greedy, other = Caller("greedy", "a", Tier.PAID, 1, 3), Caller("other", "a", Tier.PAID, 1, 3)
    for number in range(3):
        frontend.ask(number, caller=greedy)
    error = error_of(partial(frontend.ask, 4, caller=greedy))
    assert isinstance(error, RateLimited)
    assert (error.reason, error.limits and error.limits[:3]) == ("rate", (1, 3, 0))
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 60
    assert frontend.ask("fine", caller=other) == {"echo": "fine"}


def a_key_without_limits_of_its_own_has_those_of_its_tier(frontend: FrontendFixture) -> None:
    for tier, burst in ((Tier.FREE, 10), (Tier.PAID, 166)):
        caller = Caller(f"key-{tier.value}", "a", tier)
        answers = wait_all(frontend, [frontend.submit(n, caller=caller) for n in range(300)])
        refused = [answer for answer in answers if isinstance(answer, RateLimited)]
        assert {error.limits and error.limits[1] for error in refused} == {burst}
        # And what came due meanwhile.
        assert len(refused) <= 300 - burst


def without_a_key_there_is_no_limit(frontend: FrontendFixture) -> None:
    nobody = ANYBODY[Tier.FREE]
    assert len(all_of(partial(frontend.ask, n, caller=nobody) for n in range(300))) == 300
    assert not frontend.redis.keys("bunch:quota:*")
