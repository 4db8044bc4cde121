"""The numbers that `bench` and `demo` print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.loadgen.load import Answer
from cli.loadgen.summary import corrected, histogram, mean_batch, percentile, summarise


def answer(
    status: int = 200, latency_s: float = 0.1, batch_size: int = 1, tier: str = "", service_s: float = 0.0
) -> Answer:
    return Answer(0, status, latency_s, 0.0, batch_size, tier=tier, service_s=service_s)


def test_goodput_counts_only_answers_within_the_deadline() -> None:
    answers = [answer(latency_s=0.1)] * 6 + [answer(latency_s=2.0)] * 2 + [answer(429)] + [answer(0)]

    summary = summarise(answers, elapsed_s=2.0, slo_s=1.0)

    assert (summary.rps, summary.goodput_rps) == (5.0, 3.0)
    assert summary.codes == {"200": 8, "429": 1, "no answer": 1}


def test_refusals_do_not_make_latencies_look_better() -> None:
    answers = [answer(429, 0.001)] * 99 + [answer(200, 1.0)]
    assert summarise(answers, 1.0, 1.0).p50_ms == 1000.0


def test_mean_batch_is_requests_per_batch_not_per_request() -> None:
    """One batch of 9 and one of 1: ten requests in two batches, though nine of ten answers say 9."""
    assert mean_batch([answer(batch_size=9)] * 9 + [answer(batch_size=1)]) == 5.0


def test_nothing_answered_is_said_as_nothing() -> None:
    summary = summarise([], 1.0, 1.0)
    assert (summary.p50_ms, summary.mean_batch, summary.codes) == (None, None, {})


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_a_value_that_the_fraction_does_not_exceed(values: list[float], fraction: float) -> None:
    found = percentile(sorted(values), fraction)
    assert found in values
    assert sum(value <= found for value in values) >= fraction * len(values)


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 20))
def test_a_histogram_counts_everything_once(values: list[float], bins: int) -> None:
    rows = histogram(values, bins)
    assert sum(count for *_, count in rows) == len(values)
    assert rows[-1][1] >= max(values)


def test_an_empty_histogram() -> None:
    assert histogram([], 5) == []


@pytest.mark.parametrize("fraction", [0.5, 0.99])
def test_no_percentile_of_nothing(fraction: float) -> None:
    assert percentile([], fraction) is None


def test_a_stall_of_a_closed_loop_counts_for_what_was_not_asked_meanwhile() -> None:
    """99 answers in 10 ms and one in a second: the caller would have asked 99 times more in that second."""
    stalled = [answer(latency_s=0.01)] * 99 + [answer(latency_s=1.0)]

    summary = summarise(stalled, 2.0, 1.0, callers=1)

    assert len(corrected(stalled)) == 99 + 1 + 99
    assert summary.p50_ms == pytest.approx(10, abs=20)
    assert summary.p95_ms is not None
    assert summary.p95_ms > 800
    assert summarise(stalled, 2.0, 1.0).p95_ms == 10


@given(st.lists(st.floats(0.5, 1.0), min_size=1))
def test_ordinary_spread_is_not_taken_for_a_stall(latencies: list[float]) -> None:
    assert sorted(corrected([answer(latency_s=each) for each in latencies])) == sorted(latencies)


def test_one_tier_s_ordinary_wait_is_no_stall_of_another() -> None:
    fast = [answer(latency_s=0.01, tier="enterprise")] * 90
    slow = [answer(latency_s=1.0, tier="free")] * 10

    summary = summarise(fast + slow, 1.0, 0.5, callers=8)

    assert (summary.tiers["enterprise"].p99_ms, summary.tiers["free"].p50_ms) == (10, 1000)
    assert summary.p50_ms == 10
    assert (summary.tiers["enterprise"].goodput_rps, summary.tiers["free"].goodput_rps) == (90, 0)


def test_an_open_loop_shows_what_it_measured_before_the_correction_too() -> None:
    summary = summarise([answer(latency_s=0.5, service_s=0.1)] * 10, 1.0, 1.0, offered_rps=10)

    assert summary.uncorrected is not None
    assert (summary.p50_ms, summary.uncorrected.p50_ms) == (500, 100)
