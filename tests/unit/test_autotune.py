"""The search of `tune --auto`, and the verdict over what came of it."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.capacity.ab_verdict import Watched, judge, watched
from batching.capacity.search import Objective
from batching.capacity.tuner import WAITS_MS, Candidate, Found, Question, Trial, candidates, pick, sizes_up_to, tune
from batching.policy import POLICIES, knobs
from batching.simulator import Affine, Bursts, Poisson, Recorded, Scenario, simulate

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

MOST = 32
SLOW = Candidate("fixed", MOST, 90)


def scenario(arrivals: Poisson | Bursts, duration_s: float = 4.0) -> Scenario:
    times = arrivals.times(duration_s, np.random.default_rng(5))
    return Scenario(
        arrivals=Recorded(times.tolist()),
        service=Affine(0.02, 0.001, 0.05),
        policy=SLOW.make,
        duration_s=duration_s,
        queue_timeout_s=2.0,
    )


def question(rps: float = 60.0, slo_s: float = 0.1, current: Candidate = SLOW, **others: object) -> Question:
    return replace(
        Question(
            scenario=scenario(Poisson(rps)),
            objective=Objective(slo_s),
            current=current,
            sizes=sizes_up_to(MOST),
            waits_ms=(2, 20),
            policies=("adaptive", "fixed", "slo"),
        ),
        **others,  # type: ignore[arg-type]
    )


@functools.cache
def usual() -> Found:
    """The answer to the usual question, for those who start from it."""
    return tune(question())


def test_a_window_that_breaks_the_objective_is_replaced() -> None:
    found = usual()
    assert not found.current.holds
    assert found.best.holds
    assert found.best.tail_ms < 100 < found.current.tail_ms
    assert found.why.startswith(f"{found.best.attainment:.1%} in time instead of")


def test_what_is_good_stays() -> None:
    good = usual().best.candidate
    again = tune(question(current=good))
    assert again.best.candidate == good
    assert again.why == f"none of {again.tried} settings is better than the current ones"


def test_an_objective_that_nothing_holds_is_said_to_be_one() -> None:
    found = tune(question(slo_s=0.015))
    assert not found.best.holds
    assert "faster model" in found.why or "no setting meets" in found.why


def test_a_burst_is_gathered() -> None:
    """Sixty within 30 ms: who goes with the first of them lets the others wait for a batch of one."""
    bursts = replace(scenario(Bursts(0.001, 60, 0.5, 0.03)), service=Affine(0.1))
    found = tune(question(scenario=bursts, slo_s=0.5, current=Candidate("idle", 64), sizes=(64,), waits_ms=(2, 50)))
    assert (found.best.candidate.max_wait_ms or 0) >= 30
    assert found.best.tail_ms < 0.9 * found.current.tail_ms


def test_the_stretch_that_parts_the_hopeless_is_the_busiest() -> None:
    """4,000 calm requests, then 2,000 in a rush: a size of 1 does for the calm only, and is not kept for its sake."""
    calm = np.linspace(0, 100, 4_000)
    rush = 100 + np.linspace(0, 2, 2_000)
    record = replace(
        scenario(Poisson(1)), arrivals=Recorded([*calm.tolist(), *rush.tolist()]), duration_s=103, service=Affine(0.02)
    )
    found = tune(question(scenario=record, current=Candidate("idle", 1), sizes=(1, 32), policies=("idle",), slo_s=1.0))
    assert found.best.candidate == Candidate("idle", 32)


def test_a_model_with_sizes_is_tuned_to_one_of_them() -> None:
    assert sizes_up_to(32, (4, 16, 64)) == (16, 4)
    assert sizes_up_to(2, (4, 16)) == (4,)
    asked = question(sizes=(16, 4), current=Candidate("fixed", 16, 90))
    asked = replace(asked, scenario=replace(asked.scenario, batch_sizes=(4, 16)))
    assert tune(asked).best.candidate.max_batch_size in (4, 16)


def test_only_a_record_can_be_tuned_for() -> None:
    with pytest.raises(TypeError, match="record"):
        tune(question(scenario=replace(scenario(Poisson(10)), arrivals=Poisson(10))))


@settings(max_examples=5)
@given(rps=st.floats(20, 900), slo_ms=st.integers(30, 400), seed=st.integers(0, 5))
def test_the_best_is_never_worse_and_the_same_question_has_the_same_answer(rps: float, slo_ms: int, seed: int) -> None:
    asked = question(rps, slo_ms / 1000, sizes=(8, MOST), seed=seed, scenario=scenario(Poisson(rps), 1.0))
    found, again = tune(asked), tune(asked)
    assert (found.best.candidate, found.tried, found.requests) == (again.best.candidate, again.tried, again.requests)
    best, now = found.best, found.current
    assert now.candidate == SLOW
    assert best.holds >= now.holds
    assert best.holds or best.attainment >= now.attainment - 0.002
    if best.holds == now.holds and best.holds_busier == now.holds_busier and best.holds:
        assert best.tail_ms <= now.tail_ms
    assert best.candidate == now.candidate or 8 <= best.candidate.max_batch_size <= MOST
    # What is said of it is what a run of it says.
    run = simulate(
        replace(asked.scenario, policy=best.candidate.make, max_batch_size=best.candidate.max_batch_size), seed
    )
    assert run == best.report


@given(most=st.integers(1, 300), slo_ms=st.integers(1, 1000))
def test_every_candidate_is_a_policy_within_its_bounds(most: int, slo_ms: int) -> None:
    asked = question(slo_s=slo_ms / 1000, sizes=sizes_up_to(most), waits_ms=WAITS_MS, policies=tuple(POLICIES))
    asked = replace(asked, options={"pid": {"target_ms": 7.0}})
    tried = list(candidates(asked))
    assert tried[0] == asked.current
    assert len(tried) == len(set(tried))
    assert {each.policy for each in tried} == set(POLICIES)
    for each in tried[1:]:
        made = knobs(each.make())
        assert 1 <= made["max_batch_size"] <= most
        assert made.get("max_wait_ms", 0) <= slo_ms
        if each.policy == "pid":
            assert made["target_ms"] == 7.0
        if each.policy == "slo":
            assert made["slo_ms"] == pytest.approx(slo_ms)


def trial(tail_ms: float, *, holds: bool = True, busier: bool = False, attainment: float = 1.0) -> Trial:
    report = simulate(scenario(Poisson(20), 0.1))
    return Trial(Candidate("idle", 1), report, attainment, tail_ms, holds, busier)


def test_the_pick() -> None:
    first, as_good, quicker = trial(50), trial(49), trial(40)
    assert pick([first, as_good]) is first
    assert pick([as_good, first]) is as_good
    assert pick([first, as_good, quicker]) is quicker
    safe = trial(60, busier=True)
    assert pick([quicker, safe]) is safe
    late, later = (trial(math.inf, holds=False, attainment=part) for part in (0.9, 0.5))
    assert pick([later, late]) is late
    assert pick([late, trial(90)]).holds


def seen(took_ms: float, count: int = 1000, *, late: int = 0, lost: int = 0, seconds: float = 10.0) -> Watched:
    """`count` requests, `late` of them at twice the objective of 100 ms."""
    took = [took_ms / 1000] * (count - late - lost) + [0.2] * late
    return watched(took, lost=lost, mean_batch=4.0, seconds=seconds, slo_s=0.1)


GOAL = Objective(0.1)


@pytest.mark.parametrize(
    ("before", "after", "keep", "said"),
    [
        (seen(80), seen(40), True, "confirmed: 100.0% in time, before 100.0%, p99 40 ms, before 80"),
        (seen(80), seen(84), True, "confirmed"),
        (seen(80), seen(95), False, "worse: 100.0% in time, before 100.0%, p99 95 ms, before 80"),
        (seen(80, late=200), seen(95), True, "confirmed: 100.0% in time, before 80.0%"),
        (seen(80), seen(40, late=100), False, "worse: 90.0% in time"),
        (seen(80), seen(40, lost=100), False, "worse: 90.0% in time"),
        # One in a hundred more is within chance, of so few.
        (seen(80, 200, late=4), seen(40, 200, late=6), True, "confirmed"),
        (seen(80), seen(40, 99), False, "too few"),
        (seen(80, 99), seen(40), False, "too few"),
        (seen(80), seen(40, 600), False, "the load went from 100.0 to 60.0/s"),
        (seen(80), seen(40, 1000, lost=1000), False, "worse: 0.0% in time"),
    ],
)
def test_the_verdict(before: Watched, after: Watched, keep: bool, said: str) -> None:
    verdict = judge(before, after, GOAL)
    assert verdict.keep is keep, verdict
    assert said in verdict.why


def test_what_a_window_says() -> None:
    each = watched([0.3, 0.05, 0.1], lost=1, mean_batch=2.0, seconds=2.0, slo_s=0.1)
    assert (each.asked, each.rps, each.goodput_rps, each.attainment) == (4, 2.0, 1.0, 0.5)
    assert (each.at_ms(0.5), each.at_ms(0.99)) == (100, 300)
    assert watched([], lost=0, mean_batch=0.0, seconds=1.0, slo_s=0.1).at_ms(0.5) is None
