"""The wait after a wrong credential."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from webapp.identity.throttle import (
    FORGIVEN_AFTER_S,
    FREE_TRIES,
    LONGEST_PAUSE_S,
    MAX_ADDRESSES,
    Throttle,
)


def test_a_few_mistakes_are_free_then_each_costs_more() -> None:
    throttle = Throttle()
    pauses = [throttle.pause("a", 0.0) for _ in range(FREE_TRIES + 10)]
    assert pauses[:FREE_TRIES] == [0.0] * FREE_TRIES
    later = pauses[FREE_TRIES:]
    assert later[0] > 0
    assert later == sorted(later)
    assert later[-1] == LONGEST_PAUSE_S


def test_one_address_does_not_pay_for_another() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.pause("a", 0.0)
    assert throttle.pause("b", 0.0) == 0.0


def test_time_forgives() -> None:
    throttle = Throttle()
    for _ in range(FREE_TRIES + 1):
        throttle.pause("a", 0.0)
    assert throttle.pause("a", 0.0) > 0
    assert throttle.pause("a", FORGIVEN_AFTER_S * (FREE_TRIES + 3)) == 0.0


def test_guessing_at_any_pace_stays_slow() -> None:
    """Whoever waits for each answer soon gets one for each of the longest pauses."""
    throttle = Throttle()
    now, tries = 0.0, 0
    while now < 600.0:
        now += throttle.pause("a", now) + 0.001
        tries += 1
    assert tries < FREE_TRIES + 20 + 600.0 / LONGEST_PAUSE_S


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(0, 1e9)), max_size=50))
def test_a_pause_is_always_a_short_time(tries: list[tuple[str, float]]) -> None:
    throttle = Throttle()
    for address, now in sorted(tries, key=lambda each: each[1]):
        assert 0.0 <= throttle.pause(address, now) <= LONGEST_PAUSE_S


def test_a_million_addresses_are_not_remembered() -> None:
    throttle = Throttle()
    for number in range(MAX_ADDRESSES + 100):
        throttle.pause(str(number), 0.0)
    assert len(throttle) == MAX_ADDRESSES
