"""Objectives: what meets one, what counts, and how fast the budget burns."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram

from config.settings import Settings
from config.tiers import Tier
from tasks.errors import BY_CODE
from tasks.fleet.registry_reader import ExecutorRow, QueueRow, WorkerRow
from tasks.observability import metrics, slo
from tasks.observability.history import Point, make_point, slo_change
from webapp.errors import STATUS_OF
from webapp.observability.metrics import RequestTallies

OBJECTIVE = slo.Objective(latency_s=1.0, target=0.99)


def test_the_callers_own_faults_are_those_with_4xx() -> None:
    """The error codes that there are; some of the contract's come with other parts."""
    assert {code for code, status in STATUS_OF.items() if status < 500} <= slo.CALLERS_OWN
    assert not slo.CALLERS_OWN & {code for code, status in STATUS_OF.items() if status >= 500}
    assert {code for code in BY_CODE if STATUS_OF[code] < 500} <= slo.CALLERS_OWN


def test_late_is_missed_and_so_is_whatever_is_not_an_answer() -> None:
    assert slo.missed_after_s("OK", OBJECTIVE) == 1.0
    assert slo.missed_after_s("SERVICE_OVERLOADED", OBJECTIVE) < 0
    assert slo.missed_after_s("INPUT_REJECTED", OBJECTIVE) == float("inf")


def test_burning_at_one_just_meets_the_objective() -> None:
    assert OBJECTIVE.burn_rate(0.99) == pytest.approx(1)
    assert OBJECTIVE.burn_rate(1.0) == 0
    assert OBJECTIVE.burn_rate(0.856) == pytest.approx(14.4)


def test_nobody_asked_is_nothing_missed() -> None:
    assert slo.attainment(0, 0) == 1
    assert slo.attainment(200, 3) == pytest.approx(0.985)


def missed(tier: Tier) -> float:
    return metrics.SLO_MISSED.labels(tier.value)._value.get()


def test_every_request_is_held_against_its_tiers_objective() -> None:
    tallies = RequestTallies(Settings(slo_enterprise_ms=100, slo_free_ms=1000))
    before = {tier: missed(tier) for tier in Tier}
    for tier in (Tier.ENTERPRISE, Tier.FREE):
        tallies.count("m", tier, "OK", 0.05)
        tallies.count("m", tier, "OK", 0.5)
        tallies.count("m", tier, "INPUT_REJECTED", 5.0)
    assert tallies.count("m", Tier.FREE, "INFERENCE_FAILED", 0.01)
    assert not tallies.count("m", Tier.FREE, "OK", 0.01)
    tallies.hand_over()
    assert missed(Tier.ENTERPRISE) - before[Tier.ENTERPRISE] == 1
    assert missed(Tier.FREE) - before[Tier.FREE] == 1


@given(st.lists(st.one_of(st.floats(0, 20), st.sampled_from(metrics.SECONDS))))
def test_what_is_counted_in_passing_is_what_would_have_been_observed(amounts: list[float]) -> None:
    one, other = (Histogram("x", "", buckets=metrics.SECONDS, registry=None) for _ in range(2))
    counted = metrics.buckets()
    for each in amounts:
        one.observe(each)
        counted[bisect_left(metrics.SECONDS, each)] += 1
    metrics.observe_all(other, counted, sum(amounts))

    def told(histogram: Histogram) -> dict[str, float]:
        (family,) = histogram.collect()
        return {
            f"{each.name}{each.labels.get('le')}": each.value for each in family.samples if "created" not in each.name
        }

    assert told(other) == pytest.approx(told(one))


def test_what_was_counted_is_handed_over_once() -> None:
    def answered() -> float:
        return metrics.REQUESTS.labels("handed", "paid", "OK", "bunch")._value.get()

    tallies = RequestTallies(Settings())
    for _ in range(3):
        tallies.count("handed", Tier.PAID, "OK", 0.02)
    assert answered() == 0
    tallies.hand_over()
    tallies.hand_over()
    assert answered() == 3


SAMPLES: metrics.Samples = {
    "bunch_requests_total": [
        ({"model": "a", "tier": "paid", "code": "OK"}, 90.0),
        ({"model": "b", "tier": "paid", "code": "OK"}, 5.0),
        ({"model": "a", "tier": "paid", "code": "INPUT_REJECTED"}, 7.0),
        ({"model": "a", "tier": "free", "code": "DEADLINE_EXCEEDED"}, 3.0),
    ],
    "bunch_slo_missed_total": [({"tier": "free"}, 3.0)],
    "bunch_request_seconds_bucket": [
        ({"model": model, "tier": "paid", "le": str(bound)}, float(bound >= 0.5))
        for model in ("a", "b")
        for bound in (*metrics.SECONDS, float("inf"))
    ]
    # Of a version of Bunch with other bounds, in the same Redis.
    + [({"model": "a", "tier": "paid", "le": "0.123"}, 1.0)],
    "bunch_batches_total": [({"model": "a", "reason": "full"}, 4.0)],
    "bunch_batch_size_sum": [({"model": "a"}, 100.0)],
}
EXECUTORS = (ExecutorRow("a", "a/0", "ready", busy=0.5), ExecutorRow("a", "a/1", "starting"))


def test_a_point_holds_the_sums_of_all_models_by_tier() -> None:
    worker = WorkerRow("w", "host", 1, 0.0, EXECUTORS)
    point = make_point(7, SAMPLES, [QueueRow("a", "free", 3, 250)], [worker, worker], [worker], dead=2)

    assert point.requests == {"paid": {"OK": 95, "INPUT_REJECTED": 7}, "free": {"DEADLINE_EXCEEDED": 3}}
    assert point.slo == {"paid": (95, 0), "free": (3, 3)}
    assert len(point.latency["paid"]) == len(metrics.SECONDS) + 1
    assert (point.latency["paid"][0], point.latency["paid"][-1]) == (0, 2)
    assert point.reasons == {"a": {"full": 4}}
    assert point.queues == {"a": {"free": (3, 250)}}
    assert point.busy == {"a": (1, 0.5)}
    assert (point.workers, point.dead) == ({"healthy": 1, "unhealthy": 1}, 2)


def test_between_two_points_is_their_difference_or_what_came_since_the_sums_began_anew() -> None:
    def at(counted: int, missed: int) -> Point:
        return Point(at=0, slo={"paid": (counted, missed)})

    assert slo_change(at(100, 1), at(150, 4), "paid") == (50, 3)
    assert slo_change(at(100, 1), at(20, 2), "paid") == (20, 2)
    assert slo_change(at(100, 1), at(150, 4), "free") == (0, 0)
