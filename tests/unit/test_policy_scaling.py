"""When the fleet grows and shrinks: each rule, what holds for all signals, and whole days in virtual time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import ScalingRules, ScalingState, Signals, Step, WhenIdle, decide_scale
from batching.simulator import Affine, Diurnal, Poisson, Scenario, Steps
from batching.simulator.elastic import simulate_elastic

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

RULES = ScalingRules(least=1, most=20)
CALM = Signals(depth=0, use=0.6, drain_s=0.0, ready=10)
EVERY_S = 5.0


def after(signals: Signals, for_s: float, rules: ScalingRules = RULES) -> tuple[float, int, str]:
    """When the first change comes under these signals, and to what; at the latest after `for_s`."""
    state, now = ScalingState(), 0.0
    while now <= for_s:
        scale, state = decide_scale(rules, signals, state, now)
        if scale.reason:
            return now, scale.wanted, scale.reason
        now += EVERY_S
    return math.inf, signals.ready + signals.starting, ""


@pytest.mark.parametrize(
    ("signals", "at_s", "wanted"),
    [
        (replace(CALM, depth=501), 30.0, 13),
        (replace(CALM, depth=101), 60.0, 11),
        (replace(CALM, use=0.9), 300.0, 11),
        (replace(CALM, use=0.3), 900.0, 9),
        (replace(CALM, use=0.1, ready=20), 900.0, 18),
        (replace(CALM, depth=50, drain_s=11.0), 15.0, 11),
        (replace(CALM, depth=50, drain_s=12.0), 15.0, 12),
        (replace(CALM, depth=50, drain_s=math.inf), 15.0, 13),
        (CALM, math.inf, 10),
        (replace(CALM, depth=100), math.inf, 10),
        (replace(CALM, depth=900, drain_s=0.3), math.inf, 10),
    ],
)
def test_each_rule_in_its_time(signals: Signals, at_s: float, wanted: int) -> None:
    at, to, _ = after(signals, for_s=1200)
    assert (at, to) == (at_s, wanted)


def test_a_condition_must_last_without_a_break() -> None:
    state = ScalingState()
    for n in range(200):
        # Every sixth look is calm, so no 30 s pass.
        signals = CALM if n % 6 == 5 else replace(CALM, depth=900)
        scale, state = decide_scale(RULES, signals, state, n * EVERY_S)
        assert not scale.reason


def test_what_was_before_a_silence_does_not_count() -> None:
    deep = replace(CALM, depth=900)
    _, state = decide_scale(RULES, deep, ScalingState(), 0.0)
    scale, state = decide_scale(RULES, deep, state, 1000.0)
    assert not scale.reason
    scale, _ = decide_scale(RULES, deep, state, 1030.0)
    assert scale.wanted == 13


def test_no_more_are_started_while_some_are_on_their_way() -> None:
    deep = replace(CALM, depth=900, drain_s=60.0)
    state, started, now = ScalingState(), 0, 0.0
    while not started:
        scale, state = decide_scale(RULES, deep, state, now)
        started, now = scale.wanted - 10, now + EVERY_S
    begun = now
    while now < begun + 2 * RULES.cold_start_s - 2 * EVERY_S:
        scale, state = decide_scale(RULES, replace(deep, starting=started), state, now)
        assert scale.wanted == 10 + started
        now += EVERY_S
    # They never came: after twice their time others are called.
    for _ in range(20):
        scale, state = decide_scale(RULES, replace(deep, starting=started), state, now)
        now += EVERY_S
        if scale.reason:
            break
    assert scale.wanted > 10 + started


def test_a_fleet_below_its_least_is_filled_at_once() -> None:
    assert after(replace(CALM, ready=0), 0.0, replace(RULES, least=3))[:2] == (0.0, 3)
    assert after(replace(CALM, ready=30), 0.0)[:2] == (0.0, 20)


def test_it_does_not_shrink_into_what_would_grow_again() -> None:
    """Two at 39 %: one alone would be at 78 %, and that is well; at 44 % it would not."""
    lenient = replace(RULES, idle=0.45)
    assert after(replace(CALM, use=0.39, ready=2), 1000.0, lenient)[1] == 1
    assert after(replace(CALM, use=0.44, ready=2), 2000.0, lenient)[1] == 2


TO_ZERO = replace(RULES, least=0)


def test_a_fleet_that_nobody_asks_goes_away_whole_where_it_may() -> None:
    quiet = Signals(depth=0, use=0.0, drain_s=0.0, ready=3)
    assert after(quiet, 1000.0, TO_ZERO) == (900.0, 0, "nothing asked for 900 s")
    assert after(quiet, 1000.0)[1] == 2
    # One request a minute is enough to stay.
    assert after(replace(quiet, ready=1, rate=1 / 60), 5000.0, TO_ZERO)[1] == 1


@pytest.mark.parametrize("asked", [{"rate": 0.2}, {"depth": 1, "drain_s": math.inf}], ids=["refused", "waiting"])
def test_the_first_request_calls_for_one_worker(asked: dict[str, float]) -> None:
    """Without a worker there is no speed and no busy time; also a request that is refused at once is a signal."""
    nobody = Signals(depth=0, use=0.0, drain_s=0.0, ready=0)
    assert after(nobody, 5000.0, TO_ZERO)[1] == 0
    assert after(replace(nobody, **asked), 0.0, TO_ZERO)[:2] == (0.0, 1)


def test_a_worker_that_was_told_to_leave_is_not_counted() -> None:
    quiet = Signals(depth=0, use=0.0, drain_s=0.0, ready=3, starting=-3)
    scale, _ = decide_scale(TO_ZERO, quiet, ScalingState(), 0.0)
    assert scale.wanted == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": -1},
        {"least": 0, "most": 0},
        {"least": 9, "most": 8},
        {"idle": 0.9},
        {"down_share": 0.5},
        {"busy": 1.5},
    ],
)
def test_rules_that_contradict_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"minimum|idle|fifth"):
        replace(ScalingRules(), **wrong)  # type: ignore[arg-type]


signals = st.builds(
    Signals,
    depth=st.integers(0, 2000),
    use=st.floats(0, 1),
    drain_s=st.floats(0, 100) | st.just(math.inf),
    ready=st.integers(0, 30),
    starting=st.integers(0, 5),
)


@given(st.lists(st.tuples(signals, st.floats(0.1, 400)), max_size=40))
def test_never_outside_its_bounds_nor_down_by_more_than_its_share(looks: list[tuple[Signals, float]]) -> None:
    state, now, changed_at = ScalingState(), 0.0, -math.inf
    for seen, gap_s in looks:
        now += gap_s
        scale, state = decide_scale(RULES, seen, state, now)
        fleet = seen.ready + seen.starting
        assert RULES.least <= scale.wanted <= RULES.most
        assert bool(scale.reason) == (scale.wanted != fleet)
        if RULES.least <= fleet <= RULES.most and scale.wanted != fleet:
            assert scale.wanted - fleet <= RULES.most_added
            if scale.wanted < fleet:
                assert fleet - scale.wanted <= max(1, fleet // 10)
                assert now - changed_at >= RULES.after_down_s
        if scale.reason:
            changed_at = now


GPU = Affine(1.0)
ONE_DOES = 32 / 1.0
ELASTIC = Scenario(
    arrivals=Poisson(0.5 * ONE_DOES),
    service=GPU,
    policy=lambda: WhenIdle(32),
    duration_s=1800.0,
    max_batch_size=32,
    slo_s=5.0,
)


def test_a_step_up_is_followed_and_then_it_rests() -> None:
    """Five times what one does: backlog at first, then none, and no swinging."""
    stepped = replace(ELASTIC, arrivals=Steps([(0, 0.5 * ONE_DOES), (300, 5 * ONE_DOES)]))
    run = simulate_elastic(stepped, replace(RULES, cold_start_s=30.0))
    ups = [change for change in run.changes if change[1] > 1]
    assert ups
    assert ups[0][0] < 300 + 60
    assert max(wanted for _, wanted, _ in run.changes) <= 16
    assert run.report.unanswered == 0
    late = [took for took, came in zip(run.report.latencies_s[1], run.report.arrived_s[1], strict=True) if came > 1500]
    assert max(late) < 5.0
    # Nothing but growing: each reversal would be a swing.
    assert sum(a[1] > b[1] for a, b in zip(run.changes, run.changes[1:], strict=False)) == 0


def test_a_quiet_fleet_shrinks_slowly_to_what_it_needs() -> None:
    quiet = replace(ELASTIC, executors=6, arrivals=Poisson(1.0), duration_s=7200.0)
    run = simulate_elastic(quiet, RULES)
    assert [wanted for _, wanted, _ in run.changes] == [5, 4, 3, 2, 1]
    assert run.changes[0][0] >= 900
    gaps = [b[0] - a[0] for a, b in zip(run.changes, run.changes[1:], strict=False)]
    assert min(gaps) >= RULES.after_down_s


def test_a_day_is_served_by_a_fleet_that_follows_it() -> None:
    """A day in an hour and a half, from a tenth of what one GPU does to six times as much."""
    day = replace(ELASTIC, arrivals=Diurnal(0.1 * ONE_DOES, 6 * ONE_DOES, 5400.0), duration_s=5400.0, executors=4)
    run = simulate_elastic(day, replace(RULES, least=2, idle_for_s=300.0, cold_start_s=30.0, after_down_s=120.0))
    assert run.report.unanswered == 0
    assert run.report.goodput_rps > 0.97 * run.report.throughput_rps
    assert {reason.split()[0] for _, _, reason in run.changes} >= {"under"}


def test_more_steps_than_the_designs_have() -> None:
    rules = ScalingRules(steps=(Step(10, 5.0, 2),))
    assert after(replace(CALM, depth=11, ready=1), 100.0, rules)[:2] == (5.0, 3)
