"""A queue over several shards in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batching.policy import Adaptive, Policy, WhenIdle
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
    Shards,
    simulate,
)

pytestmark = pytest.mark.slow

MAX = 64


def adaptive() -> Policy:
    return Adaptive(MAX, 0.005)


BASE = Scenario(
    arrivals=Poisson(2000.0),
    service=Affine(0.05),
    policy=adaptive,
    duration_s=6.0,
    max_batch_size=MAX,
    executors=4,
    tiers=(0.05, 0.25, 0.70),
    warm_up_s=1.0,
)


def run(shards: Shards, **changes: object) -> Report:
    return simulate(replace(BASE, shards=shards, **changes))  # type: ignore[arg-type]


def test_the_same_requests_arrive_whatever_the_shards() -> None:
    one, many = run(Shards(1)), run(Shards(16))
    for mine, theirs in zip(one.arrived_s, many.arrived_s, strict=True):
        assert sorted(mine.tolist()) == sorted(theirs.tolist())


def test_the_same_seed_gives_the_same() -> None:
    troubled = replace(
        BASE,
        shards=Shards(8, owners=50),
        service=Affine(0.05, jitter=0.2),
        deadlines_s=((0.2, 2.0),) * 3,
        faults=Faults(crash_every_s=3.0, restart_s=0.5, error_rate=0.05),
    )
    assert simulate(troubled, seed=7) == simulate(troubled, seed=7)
    assert simulate(troubled, seed=7) != simulate(troubled, seed=8)


@pytest.mark.parametrize("reach", [1, 4, 16])
def test_nothing_is_lost_or_answered_twice(reach: int) -> None:
    """With crashes, retries, deadlines, and requests that are given up."""
    report = run(
        Shards(16, reach),
        deadlines_s=((0.1, 1.0),) * 3,
        faults=Faults(crash_every_s=2.0, restart_s=0.5, error_rate=0.1),
        queue_timeout_s=0.8,
        warm_up_s=0.0,
    )
    assert report.unanswered == 0
    assert report.expired > 0
    assert report.requests == report.answered + report.expired + report.failed
    assert sum(len(each) for each in report.latencies_s) == report.answered
    assert min(float(each.min()) for each in report.latencies_s if len(each)) >= 0.05 - 1e-9


def test_a_claim_fills_its_batch_from_as_many_shards_as_it_needs_and_no_more() -> None:
    """64 requests wait, on 8 shards: some 8 on each."""
    waiting = Recorded([0.0] * MAX)
    whole = run(Shards(8), arrivals=waiting, policy=lambda: WhenIdle(MAX), executors=1, warm_up_s=0.0)
    assert (whole.batches, whole.mean_batch, whole.parts) == (1, MAX, 8)
    alone = run(Shards(8, 1), arrivals=waiting, policy=lambda: WhenIdle(MAX), executors=1, warm_up_s=0.0)
    assert alone.batches == alone.parts == 8
    some = run(Shards(8, 3), arrivals=waiting, policy=lambda: WhenIdle(MAX), executors=1, warm_up_s=0.0)
    assert (some.batches, some.parts) == (3, 8)
    # Full after the first shard: the others are not asked.
    full = run(Shards(8), arrivals=Recorded([0.0] * 64 * MAX), policy=lambda: WhenIdle(MAX), executors=1)
    assert full.parts < 2 * full.batches


def test_filling_keeps_the_batches_of_one_shard_and_claims_from_one_shard_do_not() -> None:
    one, filled, alone = run(Shards(1)), run(Shards(16)), run(Shards(16, 1))
    assert one.p99_ms is not None
    assert filled.p99_ms is not None
    assert alone.p99_ms is not None
    assert filled.mean_batch == pytest.approx(one.mean_batch, rel=0.05)
    assert filled.p99_ms < 1.3 * one.p99_ms
    assert alone.p99_ms > 4 * filled.p99_ms
    # The price: several claims a batch.
    assert one.visits == pytest.approx(one.batches, rel=0.05)
    assert filled.visits > 6 * filled.batches
    assert alone.visits < 2 * alone.batches


def test_no_tier_starves_while_higher_ones_wait_on_other_shards() -> None:
    """Too much for the executors, a part of it of the top tier, and each claim takes from one shard."""
    report = run(Shards(16, 1), arrivals=Poisson(6000.0), tiers=(0.2, 0.4, 0.4), queue_timeout_s=2.0)
    enterprise, paid, free = (len(each) for each in report.latencies_s)
    assert min(paid, free) > 0.5 * enterprise
    assert report.per_tier_p95_ms["enterprise"] < report.per_tier_p95_ms["free"]


def test_a_visit_costs_what_it_costs_once_more_for_each_further_shard() -> None:
    waiting = Recorded([0.0] * MAX)
    alone = {"arrivals": waiting, "policy": lambda: WhenIdle(MAX), "executors": 1, "warm_up_s": 0.0}
    free = run(Shards(8), **alone)
    dear = run(Shards(8), **alone, overheads=Overheads(visit_s=0.01))
    assert free.p50_ms is not None
    assert dear.p50_ms == pytest.approx(free.p50_ms + 7 * 10)


def test_callers_of_a_closed_loop_stay_on_their_shard() -> None:
    report = run(Shards(4), arrivals=Callers(MAX), executors=1)
    assert report.throughput_rps == pytest.approx(MAX / 0.05, rel=0.1)


def test_owners_are_each_on_one_shard() -> None:
    """A single owner: all is as with one shard, which the others do not relieve."""
    one = run(Shards(16, 1, owners=1))
    assert one.parts == one.batches
    assert one.mean_batch == pytest.approx(run(Shards(1)).mean_batch, rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"count": 0}, "shards must be at least 1"),
        ({"count": 4, "reach": 0}, "reach at least 1"),
        ({"count": 4, "owners": -1}, "owners and skew"),
        ({"count": 4, "skew": -1.0}, "owners and skew"),
    ],
)
def test_shards_that_cannot_be_are_refused(wrong: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Shards(**wrong)  # type: ignore[arg-type]


def test_admission_is_not_simulated_over_shards() -> None:
    with pytest.raises(ValueError, match="each admits for itself"):
        replace(BASE, shards=Shards(2), gate=lambda scenario: AdmissionGate(Admission(form=Form.DRAIN), scenario))
