"""The simulator against what is known without it: queueing theory, arithmetic, and the rules it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.policy import Adaptive, Decision, FixedWindow, Look, Policy, QueueView, WhenIdle
from batching.policy.admission import Admission, Form
from batching.simulator import (
    AdmissionGate,
    Affine,
    Callers,
    Faults,
    Overheads,
    Poisson,
    Recorded,
    Report,
    Scenario,
    Steps,
    simulate,
)
from batching.simulator.engine import Stuck

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

MAX = 8
GPU = Affine(0.020, 0.0005)


def idle() -> Policy:
    return WhenIdle(MAX)


def fixed() -> Policy:
    return FixedWindow(MAX, 0.05)


def adaptive() -> Policy:
    return Adaptive(MAX, 0.05)


BASE = Scenario(arrivals=Poisson(200.0), service=GPU, policy=idle, duration_s=20.0, max_batch_size=MAX)


def test_one_executor_without_batching_is_the_queue_of_the_textbook() -> None:
    """M/D/1 waits ρ·s / 2(1 − ρ) on average (Pollaczek, Khinchine)."""
    service_s, rho = 0.010, 0.8
    one_by_one = replace(
        BASE,
        arrivals=Poisson(rho / service_s),
        service=Affine(service_s),
        policy=lambda: WhenIdle(1),
        duration_s=200.0,
    )
    report = simulate(one_by_one)
    mean_s = float(report.latencies_s[1].mean())
    assert mean_s == pytest.approx(service_s + rho * service_s / (2 * (1 - rho)), rel=0.05)
    assert report.utilisation == pytest.approx(rho, rel=0.02)


def test_several_executors_wait_less_than_one_that_is_as_fast() -> None:
    """Its executors are shared by one queue: no request waits beside a free one."""
    slow = replace(
        BASE, arrivals=Poisson(320.0), service=Affine(0.010), policy=lambda: WhenIdle(1), executors=4, duration_s=20.0
    )
    report = simulate(slow)
    waits_s = report.latencies_s[1] - 0.010
    # Erlang C for 4 servers at 80 % lets 60 % wait (M/M/4); with constant times it is no more.
    assert 0.3 < float((waits_s > 1e-9).mean()) < 0.62


@pytest.mark.parametrize("policy", [idle, fixed, adaptive])
def test_a_lone_request_takes_what_the_model_takes(policy: type[Policy]) -> None:
    report = simulate(replace(BASE, arrivals=Recorded([1.0]), policy=policy))
    wait_ms = 50.0 if policy is fixed else 0.0
    assert report.p50_ms == pytest.approx(20.5 + wait_ms)


def test_costs_are_added_where_they_arise() -> None:
    costs = Overheads(submit_s=0.001, look_s=0.5, claim_s=0.002, collect_s=0.004, reply_s=0.008, reply_item_s=0.016)
    report = simulate(replace(BASE, arrivals=Recorded([1.0]), overheads=costs))
    # `WhenIdle` does not look when it is free.
    assert report.p50_ms == pytest.approx(20.5 + 1 + 2 + 4 + 8 + 16)


def test_requests_that_come_together_are_taken_and_answered_in_turn() -> None:
    """Four at once, for a full batch, each of whose requests costs something on each stretch of the way."""
    costs = Overheads(submit_item_s=0.001, reply_item_s=0.002, claim_item_s=0.01, finish_item_s=0.1)
    four = replace(
        BASE, arrivals=Recorded([1.0] * 4), policy=lambda: FixedWindow(4, 9.0), service=Affine(0.1), overheads=costs
    )
    # In the queue after 4, in the executor after 40 more, stored after 400, and then one after the other.
    assert sorted(float(each) * 1000 for each in simulate(four).latencies_s[1]) == pytest.approx([546, 548, 550, 552])
    # Nobody waits for the turn of those who came long before.
    alone = replace(four, arrivals=Recorded([1.0, 2.0]), policy=idle)
    assert [float(each) * 1000 for each in simulate(alone).latencies_s[1]] == pytest.approx([213, 213])


def test_callers_come_back_as_they_are_answered() -> None:
    """Those of one batch do not ask again at the same moment: `WhenIdle` sends off the first alone."""
    loop = replace(BASE, arrivals=Callers(8), service=Affine(0.1), policy=idle, duration_s=10.0)
    together = simulate(loop)
    apart = simulate(replace(loop, overheads=Overheads(submit_item_s=0.001, reply_item_s=0.002)))
    assert together.mean_batch is not None
    assert apart.mean_batch is not None
    assert apart.mean_batch < together.mean_batch


def test_one_of_the_ways_back_is_drawn_for_each_batch() -> None:
    """In place of the usual costs, from a stream of its own: all else is as it was."""
    usual = Overheads(finish_item_s=0.001, reply_item_s=0.002)
    each = replace(BASE, arrivals=Recorded([float(n) for n in range(40)]), service=Affine(0.1, jitter=0.5))
    plain = simulate(replace(each, overheads=usual)).latencies_s[1]
    only = simulate(replace(each, overheads=replace(usual, ways_back=((0.001, 0.002),)))).latencies_s[1]
    assert only.tolist() == pytest.approx(plain.tolist())
    some = simulate(replace(each, overheads=replace(usual, ways_back=((0.001, 0.002), (0.03, 0.004))))).latencies_s[1]
    more_ms = sorted({round(float(more) * 1000, 6) for more in some - plain})
    assert more_ms == [0, 31]


def test_who_is_answered_late_asks_late() -> None:
    """Two callers, whose answers are now close together and now far apart: `WhenIdle` does not wait for the second."""
    loop = replace(BASE, arrivals=Callers(2), service=Affine(0.1), policy=idle, duration_s=30.0)
    costs = Overheads(claim_s=0.001, ways_back=((0.0, 0.0), (0.0, 0.005)))
    near = simulate(replace(loop, overheads=replace(costs, ways_back=costs.ways_back[:1])), seed=3)
    sometimes_far = simulate(replace(loop, overheads=costs), seed=3)
    assert near.mean_batch == pytest.approx(2, abs=0.1)
    assert sometimes_far.mean_batch is not None
    assert 1.2 < sometimes_far.mean_batch < 1.8
    assert simulate(replace(loop, overheads=costs), seed=3) == sometimes_far


def test_a_full_batch_is_claimed_behind_the_one_that_computes() -> None:
    """So the cost of a claim is not seen between two batches."""
    costs = Overheads(claim_s=0.004)
    flood = replace(BASE, arrivals=Recorded([0.0] * 80), overheads=costs)
    report = simulate(flood)
    # The first claim shows, and the next two: before a batch has been measured there is no time to claim ahead of.
    last_s = float(report.latencies_s[1].max())
    assert 10 * 0.024 < last_s < 10 * 0.024 + 3 * 0.004 + 1e-9


def test_a_closed_loop_is_as_fast_as_its_turns() -> None:
    report = simulate(replace(BASE, arrivals=Callers(MAX, think_s=0.002), policy=adaptive))
    assert report.mean_batch == pytest.approx(MAX, rel=0.05)
    assert report.throughput_rps == pytest.approx(MAX / 0.026, rel=0.05)


def test_callers_whose_request_has_expired_ask_again() -> None:
    report = simulate(replace(BASE, arrivals=Callers(50 * MAX), queue_timeout_s=0.5))
    assert report.expired > 10 * 50 * MAX
    assert report.throughput_rps == pytest.approx(MAX / 0.024, rel=0.02)


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    scenario = replace(
        BASE,
        service=Affine(0.020, 0.0005, jitter=0.2),
        tiers=(0.05, 0.25, 0.7),
        deadlines_s=((0.1, 2.0),) * 3,
        faults=Faults(crash_every_s=3.0, restart_s=0.5, error_rate=0.05, slow_rate=0.05),
    )
    assert simulate(scenario, seed=7) == simulate(scenario, seed=7)
    assert simulate(scenario, seed=7) != simulate(scenario, seed=8)


def test_another_policy_meets_the_same_requests() -> None:
    one, other = (simulate(replace(BASE, policy=policy, service=replace(GPU, jitter=0.1))) for policy in (idle, fixed))
    assert sorted(one.arrived_s[1].tolist()) == sorted(other.arrived_s[1].tolist())


def test_the_top_tier_goes_first_and_none_starves() -> None:
    """Twice what it can do, and less from the top than the aged shares of the others leave it."""
    report = simulate(
        replace(
            BASE,
            arrivals=Poisson(2 * MAX / 0.024),
            tiers=(0.1, 0.45, 0.45),
            queue_timeout_s=1.0,
            duration_s=30.0,
        )
    )
    enterprise, paid, free = (len(each) for each in report.latencies_s)
    served = enterprise + paid + free
    assert report.per_tier_p95_ms["enterprise"] < 100
    assert enterprise / served == pytest.approx(0.2, rel=0.1)
    assert free / served > 0.3


def test_what_waits_too_long_is_dropped_before_the_model() -> None:
    overload = replace(BASE, arrivals=Poisson(1000.0), queue_timeout_s=0.2)
    report = simulate(overload)
    assert report.expired > 0
    assert report.throughput_rps == pytest.approx(MAX / 0.024, rel=0.05)
    assert report.p99_ms is not None
    assert report.p99_ms <= 1000 * (0.2 + 2 * 0.024) + 1


def test_goodput_is_what_came_within_objective_and_deadline() -> None:
    late = replace(BASE, arrivals=Recorded([0.0] * 2 * MAX))
    assert simulate(replace(late, slo_s=0.030)).goodput_rps == pytest.approx(MAX / 20.0)
    assert simulate(replace(late, deadlines_s=((0.030, 0.030),) * 3)).goodput_rps == pytest.approx(MAX / 20.0)


class _Door:
    """Lets nobody in behind three who wait, and no free caller ever."""

    def refuses(self, now: float, rank: int, depths: Sequence[int]) -> str | None:
        return "full" if sum(depths) >= 3 or rank == 2 else None


def test_a_gate_refuses_by_what_waits() -> None:
    report = simulate(
        replace(BASE, arrivals=Recorded([0.0] * 10, [2, 2] + [1] * 8), gate=lambda _: _Door(), policy=fixed)
    )
    assert report.refused == {"enterprise": 0, "paid": 5, "free": 2}
    assert report.answered == 3


def test_a_breaker_keeps_the_requests_of_a_broken_model_in_their_queue() -> None:
    """Without one, the attempts of all would be used up within the outage."""
    broken = replace(BASE, arrivals=Poisson(50.0), faults=Faults(outage_s=(5.0, 12.0)))
    report = simulate(broken)
    assert report.answered + report.failed == report.requests
    # Five batches open it; then one probe at a time, after pauses of a second and more.
    assert report.failed < 60
    assert report.answered > 900


def test_members_of_a_batch_that_died_run_again() -> None:
    report = simulate(replace(BASE, faults=Faults(crash_every_s=2.0, restart_s=0.1)))
    assert report.answered > 0.98 * report.requests
    assert report.answered + report.failed == report.requests
    assert report.p99_9_ms is not None
    assert report.p99_9_ms > 100


def test_a_batch_past_its_time_limit_is_killed() -> None:
    report = simulate(replace(BASE, faults=Faults(slow_rate=0.02, slow_factor=100.0, timeout_s=0.2, restart_s=0.1)))
    assert report.answered + report.failed == report.requests
    assert report.utilisation < 1.0


def test_warm_up_is_served_and_not_counted() -> None:
    stepped = replace(BASE, arrivals=Steps([(0.0, 450.0), (5.0, 50.0)]), warm_up_s=10.0)
    report = simulate(stepped)
    assert report.offered_rps == pytest.approx(50.0, rel=0.2)
    assert report.p99_ms is not None
    assert report.p99_ms < 100


class _LooksForEver:
    def decide(self, queue: QueueView, now: float) -> Decision:
        return Look()


def test_a_policy_that_would_spin_is_reported() -> None:
    with pytest.raises(Stuck, match="asked to look again"):
        simulate(replace(BASE, policy=_LooksForEver))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"executors": 0}, "executor"),
        ({"duration_s": 0.0}, "duration_s"),
        ({"tiers": (0.5, 0.5, 0.5)}, "sum to 1"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BASE, **change)  # type: ignore[arg-type]


troubles = st.builds(
    Faults,
    crash_every_s=st.sampled_from([0.3, 2.0, math.inf]),
    restart_s=st.floats(0, 1),
    error_rate=st.sampled_from([0.0, 0.1, 0.5]),
    slow_rate=st.sampled_from([0.0, 0.1]),
    timeout_s=st.sampled_from([0.05, math.inf]),
    max_attempts=st.integers(1, 4),
)


@settings(max_examples=40)
@given(
    faults=troubles,
    rps=st.floats(1, 800),
    executors=st.integers(1, 3),
    limit_s=st.sampled_from([0.05, 1.0, math.inf]),
    deadline_s=st.sampled_from([(0.05, 1.0), (0.5, 0.5), (math.inf, math.inf)]),
    policy=st.sampled_from([idle, fixed, adaptive]),
    costs=st.sampled_from([Overheads(), Overheads(0.001, 0.0005, 0.001, 0.0003, 0.001)]),
    seed=st.integers(0, 1000),
)
def test_every_request_ends_exactly_once(
    faults: Faults,
    rps: float,
    executors: int,
    limit_s: float,
    deadline_s: tuple[float, float],
    policy: type[Policy],
    costs: Overheads,
    seed: int,
) -> None:
    report = simulate(
        Scenario(
            arrivals=Poisson(rps),
            service=replace(GPU, jitter=0.1),
            policy=policy,
            duration_s=2.0,
            max_batch_size=MAX,
            executors=executors,
            tiers=(0.1, 0.3, 0.6),
            queue_timeout_s=limit_s,
            deadlines_s=(deadline_s,) * 3,
            faults=faults,
            overheads=costs,
        ),
        seed,
    )
    _holds(report)


def _holds(report: Report) -> None:
    assert report.answered + report.expired + report.failed == report.requests
    assert report.unanswered == 0
    assert all(1 <= size <= MAX for _, size in report.batch_starts)
    assert sum(len(each) for each in report.latencies_s) == report.answered
    assert all((each > 0).all() for each in report.latencies_s)
    assert 0 <= report.utilisation <= 1


@pytest.mark.parametrize("form", [Form.DRAIN, Form.DEPTH])
def test_the_frontends_own_rule_keeps_the_top_tier_fast_in_an_overload(form: Form) -> None:
    """Twice what it can do, a tenth of it from the top: lower tiers are refused, and who is let in is served."""
    thresholds = (math.inf, 1.5, 0.5) if form is Form.DRAIN else (math.inf, 500.0, 100.0)
    rule = Admission(form=form, thresholds=thresholds)
    overload = replace(
        BASE,
        arrivals=Poisson(2 * MAX / 0.024),
        tiers=(0.1, 0.3, 0.6),
        queue_timeout_s=2.0,
        gate=lambda scenario: AdmissionGate(rule, scenario),
    )
    report = simulate(overload)
    assert report.refused["enterprise"] == 0
    assert report.refused["free"] > report.refused["paid"]
    assert report.per_tier_p95_ms["enterprise"] < 100
    # By depth no free caller is let in while more arrive than is promised, so a part of the GPU is idle.
    used = 0.97 if form is Form.DRAIN else 0.8
    assert report.throughput_rps > used * MAX / 0.024
    without = simulate(replace(overload, gate=None))
    assert without.expired > 5 * report.expired


def test_a_tier_whose_oldest_has_aged_gets_its_larger_share() -> None:
    """The top tier alone would fill every batch; after half a second the other gets a third of each."""
    flood = Recorded([0.0] * 2000, [0] * 1000 + [2] * 1000)
    report = simulate(replace(BASE, arrivals=flood, duration_s=1.0))
    free = report.latencies_s[2]
    young = ((free > 0.1) & (free < 0.5)).sum() / 0.4
    aged = ((free > 0.7) & (free < 1.1)).sum() / 0.4
    assert aged > 2.5 * young
