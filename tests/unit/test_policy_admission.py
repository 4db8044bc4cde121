"""Admission: the thresholds, a caller's share, and what is hopeless."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import AGED_SHARE, Admission, Form, Gcra, Pressure, Shed

RULE = Admission()
ENTERPRISE, PAID, FREE = range(3)
AT_REST = (0.0, 0.0, 0.0)

depths = st.tuples(*[st.integers(0, 5000)] * 3)
arrivals = st.tuples(*[st.floats(0, 3000)] * 3)
rates = st.floats(1, 3000)
ranks = st.integers(0, 2)


def judge(pressure: Pressure, rank: int, *, rule: Admission = RULE, own: int = 0, keyed: bool = False, **times: float):
    limits = {"deadline_s": 10.0, "queue_limit_s": 2.0} | times
    return rule.judge(pressure, rank, own=own, keyed=keyed, **limits)


@given(depths=depths, arrivals=arrivals, rank=ranks)
def test_nobody_is_refused_on_a_guess(depths, arrivals, rank) -> None:
    assert judge(Pressure(depths, arrivals, rate=0.0), rank, own=100, keyed=True) is None


@given(depths=depths, arrivals=arrivals, rate=rates, rank=ranks)
def test_off_refuses_nobody(depths, arrivals, rate, rank) -> None:
    rule = Admission(Form.OFF)
    assert judge(Pressure(depths, arrivals, rate), rank, rule=rule, own=100, keyed=True, deadline_s=0.001) is None


def test_the_thresholds_count_at_the_promised_capacity() -> None:
    # 70 % of 100 a second: 35 of them take half a second.
    assert judge(Pressure((0, 0, 35), AT_REST, 100.0), FREE) is None
    assert judge(Pressure((0, 0, 36), AT_REST, 100.0), FREE) is Shed.PRESSURE
    assert judge(Pressure((36, 0, 0), AT_REST, 100.0), FREE) is Shed.PRESSURE
    assert judge(Pressure((0, 36, 69), AT_REST, 100.0), PAID) is None
    assert judge(Pressure((0, 37, 69), AT_REST, 100.0), PAID) is Shed.PRESSURE
    assert judge(Pressure((0, 37, 69), AT_REST, 100.0), ENTERPRISE) is None


def test_half_the_fleet_is_half_the_room() -> None:
    pressure = Pressure((0, 0, 20), AT_REST, 100.0)
    assert judge(pressure, FREE) is None
    assert judge(Pressure(pressure.depths, AT_REST, 50.0), FREE) is Shed.PRESSURE


def test_the_absolute_form_counts_requests() -> None:
    rule = Admission(Form.DEPTH, thresholds=(math.inf, 500, 100))
    for rate in (0.0, 1e6):
        assert judge(Pressure((0, 0, 100), AT_REST, rate), FREE, rule=rule) is None
        assert judge(Pressure((0, 1, 100), AT_REST, rate), FREE, rule=rule) is Shed.PRESSURE
        assert judge(Pressure((0, 400, 100), AT_REST, rate), PAID, rule=rule) is None
        assert judge(Pressure((0, 401, 100), AT_REST, rate), PAID, rule=rule) is Shed.PRESSURE
        assert judge(Pressure((0, 401, 100), AT_REST, rate), ENTERPRISE, rule=rule) is None


def test_the_absolute_form_lets_no_free_request_in_above_capacity() -> None:
    rule = Admission(Form.DEPTH, thresholds=(math.inf, 500, 100))
    assert judge(Pressure((0, 0, 0), (5.0, 20.0, 45.0), 100.0), FREE, rule=rule) is None
    assert judge(Pressure((0, 0, 0), (5.0, 20.0, 46.0), 100.0), FREE, rule=rule) is Shed.PRESSURE
    assert judge(Pressure((0, 0, 0), (5.0, 20.0, 46.0), 100.0), PAID, rule=rule) is None


@given(depths=depths, arrivals=arrivals, rate=rates, own=st.integers(0, 5000))
def test_a_higher_tier_is_let_in_wherever_a_lower_one_is(depths, arrivals, rate, own) -> None:
    pressure = Pressure(depths, arrivals, rate)
    # The wait of a higher tier is never longer than that of a lower one that it goes before.
    refused = [judge(pressure, rank) in {Shed.PRESSURE, Shed.SHARE} for rank in range(3)]
    assert refused == sorted(refused)


@given(waiting=st.integers(0, 35))
def test_one_key_alone_leaves_half_of_the_room(waiting: int) -> None:
    verdict = judge(Pressure((0, 0, waiting), AT_REST, 100.0), FREE, own=waiting, keyed=True)
    assert (verdict is Shed.SHARE) == (2 * waiting > 35)


@given(hogs=st.integers(1, 20))
def test_whatever_some_keys_have_queued_another_one_is_let_in(hogs: int) -> None:
    own = [0] * hogs
    for _ in range(40):
        for each in range(hogs):
            if judge(Pressure((0, 0, sum(own)), AT_REST, 100.0), FREE, own=own[each], keyed=True) is None:
                own[each] += 1
    assert judge(Pressure((0, 0, sum(own)), AT_REST, 100.0), FREE, own=0, keyed=True) is None
    assert max(own) - min(own) <= 1


def test_what_could_not_be_answered_in_time_is_refused() -> None:
    busy = Pressure((0, 100, 0), AT_REST, 100.0, first_s=0.1, full_s=0.2, full=50)
    assert judge(busy, ENTERPRISE, deadline_s=0.3) is None, "it goes before those"
    assert judge(busy, PAID, deadline_s=1.25) is None
    assert judge(busy, PAID, deadline_s=1.19) is Shed.DEADLINE
    assert judge(busy, PAID, queue_limit_s=0.9) is Shed.DEADLINE
    # However short its time, nothing is predicted for a queue in which nothing waits.
    assert judge(Pressure((0, 0, 0), AT_REST, 100.0, first_s=0.1, full_s=0.2), PAID, deadline_s=0.01) is None


def test_the_wait_of_a_tier_counts_whatever_goes_before() -> None:
    quiet = Pressure((10, 20, 30), AT_REST, 100.0)
    # Of each second paid and free keep 30 %, then free 10 %.
    assert RULE.wait_s(quiet, ENTERPRISE) == pytest.approx(10 / 70)
    assert RULE.wait_s(quiet, PAID) == pytest.approx(30 / 90)
    assert RULE.wait_s(quiet, FREE) == pytest.approx(60 / 100)
    # Those who come meanwhile go before it too.
    assert RULE.wait_s(Pressure((0, 0, 30), (10.0, 40.0, 99.0), 100.0), FREE) == pytest.approx(30 / 50)


@given(depths=depths, arrivals=arrivals, rate=rates)
def test_whatever_the_others_do_a_tier_that_has_aged_is_served(depths, arrivals, rate) -> None:
    for rank in (PAID, FREE):
        bound = RULE.ageing_s + depths[rank] / (AGED_SHARE * rate)
        assert RULE.wait_s(Pressure(depths, arrivals, rate), rank) <= bound


@given(
    rpm=st.integers(1, 100_000),
    burst=st.integers(1, 1000),
    gaps=st.lists(st.integers(0, 200_000), max_size=300),
)
def test_gcra_lets_through_what_is_allowed_and_not_one_more(rpm: int, burst: int, gaps: list[int]) -> None:
    gcra = Gcra.per_minute(rpm, burst)
    now = start = 1_700_000_000_000_000
    tat, allowed = 0.0, 0
    for gap in gaps:
        now += gap
        take = gcra.take(tat, now)
        assert take.allowed == (gcra.remaining(tat, now) > 0)
        allowed += take.allowed
        tat = take.tat_us
        assert allowed <= burst + (now - start) / gcra.interval_us + 1e-6
    if gaps:
        # Never idle by more than it must: whoever is refused would have been over.
        assert allowed >= min(len(gaps), burst)


@given(
    rpm=st.integers(1, 100_000),
    burst=st.integers(1, 1000),
    jumps=st.lists(st.integers(-(10**12), 10**6), min_size=1, max_size=50),
)
def test_however_the_clock_jumps_nobody_waits_for_more_than_the_burst(rpm: int, burst: int, jumps: list[int]) -> None:
    gcra = Gcra.per_minute(rpm, burst)
    now, tat = 1_700_000_000_000_000, 0.0
    for jump in jumps:
        for _ in range(3):
            take = gcra.take(tat, now)
            assert take.retry_us <= burst * gcra.interval_us
            assert 0 <= gcra.remaining(tat, now) <= burst
            tat = take.tat_us
        now += jump


@given(rpm=st.integers(1, 100_000), burst=st.integers(1, 50))
def test_a_retry_after_the_time_named_is_let_through(rpm: int, burst: int) -> None:
    gcra = Gcra.per_minute(rpm, burst)
    tat, now = 0.0, 1_700_000_000_000_000.0
    while (take := gcra.take(tat, now)).allowed:
        tat = take.tat_us
    assert not gcra.take(tat, now + take.retry_us - 2).allowed
    assert gcra.take(tat, now + take.retry_us + 1).allowed
