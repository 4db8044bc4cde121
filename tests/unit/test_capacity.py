"""Formulas against tables and each other, the search, and plans that make sense."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.capacity.designs import DESIGNS, Design, replay
from batching.capacity.formulas import (
    bandwidth,
    batches,
    cost_per_million,
    erlang_c,
    gpus_for,
    rate_of_one,
    redis_needs,
)
from batching.capacity.plan import Load, plan
from batching.capacity.search import Objective, first
from batching.policy import Policy, WhenIdle
from batching.simulator import Affine, Overheads, Poisson, Scenario, simulate

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


def test_the_designs_own_figures() -> None:
    assert rate_of_one(64, 0.2) == 320
    assert rate_of_one(32, 0.055, 0.02) == pytest.approx(426, abs=1)
    assert gpus_for(10_000, 320, 1.0) == 32
    assert gpus_for(10_000, 1000, 1.0) == 10
    assert (gpus_for(1_000, 320, 1.0), gpus_for(1_000, 320)) == (4, 5)
    assert gpus_for(1_000, 426.7) == 4
    assert gpus_for(10_000, 426.7) == 34


@pytest.mark.parametrize(
    ("servers", "load", "waits"), [(1, 0.8, 0.8), (2, 1.0, 1 / 3), (5, 4.0, 0.5541), (10, 8.0, 0.4092)]
)
def test_erlang_c_is_the_table(servers: int, load: float, waits: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(waits, abs=1e-4)


def test_erlang_c_at_its_ends() -> None:
    assert erlang_c(4, 0.0) == 0.0
    assert erlang_c(4, 4.0) == 1.0
    assert batches(10_000, 10, 50, 0.05).wait_s(0.99) == math.inf


def test_queueing_formulas_agree_with_the_simulator() -> None:
    """Single requests at 4 GPUs, 85 %: the formula for the mean is good to a tenth."""
    theory = batches(340.0, 4, 1, 0.01)
    run = simulate(
        Scenario(
            arrivals=Poisson(340.0), service=Affine(0.01), policy=lambda: WhenIdle(1), duration_s=40.0, executors=4
        )
    )
    assert theory.mean_wait_s == pytest.approx(float(run.latencies_s[1].mean()) - 0.01, rel=0.15)


@given(least=st.integers(1, 50), needed=st.integers(1, 400), most=st.integers(1, 400))
def test_the_search_finds_the_smallest(least: int, needed: int, most: int) -> None:
    most = max(least, most)
    expected = max(least, needed)
    assert first(lambda n: n >= needed, least, most) == (expected if expected <= most else None)


def _policy(size: int) -> Policy:
    return WhenIdle(size)


LOAD = Load(
    rps=1_000,
    objective=Objective(0.2, 0.95),
    service=Affine(0.1),
    max_batch_size=32,
    policy=lambda: WhenIdle(32),
    overheads=Overheads(),
    gpu_hour_cost=2.0,
    requests=4_000,
)


def test_a_plan_has_the_headroom_and_is_confirmed() -> None:
    found = plan(LOAD)
    assert (found.feasible, found.raw, found.by_formula, found.gpus) == (True, 4, 5, 5)
    assert found.smallest == 4
    assert found.report is not None
    assert LOAD.objective.is_held(found.report)
    assert found.report.executors == 5
    assert found.cost_per_million == pytest.approx(5 * 2 / 3.6)
    assert found.web_processes == 1


def test_a_tight_objective_needs_more_than_the_formula() -> None:
    """240 ms with 200 ms per batch: a request may hardly wait for a GPU, and the formula knows nothing of that."""
    found = plan(replace(LOAD, rps=50, service=Affine(0.2), objective=Objective(0.24), requests=1_000))
    assert found.feasible
    assert found.by_formula == 1
    assert found.gpus == found.smallest > 1
    assert "not enough" in found.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"objective": Objective(0.09)}, "one request takes 100 ms"),
        ({"most": 3}, "more than the 3 allowed"),
        ({"most": 4, "objective": Objective(0.105, 0.99)}, "even 4 GPUs"),
    ],
)
def test_what_no_fleet_can_hold(change: dict[str, object], why: str) -> None:
    found = plan(replace(LOAD, **change))  # type: ignore[arg-type]
    assert not found.feasible
    assert why in found.why


@settings(max_examples=4)
@given(rps=st.floats(20, 400), slo_s=st.sampled_from([0.15, 0.25, 0.6]))
def test_more_load_never_needs_fewer(rps: float, slo_s: float) -> None:
    one, other = (plan(replace(LOAD, rps=each, objective=Objective(slo_s, 0.95))) for each in (rps, 1.5 * rps))
    assert one.feasible
    assert other.feasible
    assert one.by_formula <= other.by_formula
    assert one.raw <= one.smallest
    # One more or less is the noise of a short run.
    assert one.gpus <= other.gpus + 1
    assert one.redis is not None
    assert other.redis is not None
    assert one.redis.memory_bytes < other.redis.memory_bytes


def test_redis_is_asked_less_per_request_by_larger_batches() -> None:
    alone, together = (redis_needs(1000, size, 0.1, payload_bytes=1000, retention_s=60) for size in (1, 64))
    # Counted on a server without MSETEX: 47.8 commands and 5 calls per request with one caller, 2.1 with batches of 43.
    assert alone.commands_per_s / 1000 == pytest.approx(47.8, rel=0.1)
    assert redis_needs(1000, 42.7, 0.1, payload_bytes=0, retention_s=0).commands_per_s / 1000 == pytest.approx(
        2.1, rel=0.1
    )
    assert together.round_trips_per_s < alone.round_trips_per_s / 50
    assert cost_per_million(10, 3.6, 1000) == pytest.approx(10.0)
    # A million answers of 2 kB and their heads are 2.6 GB.
    assert cost_per_million(10, 3.6, 1000, payload_bytes=2000, gb_cost=0.1) == pytest.approx(10.26)
    # Design A: 20 MB/s each way for the payloads alone.
    assert bandwidth(10_000, 2000).callers == pytest.approx(26e6)
    assert bandwidth(10_000, 2000).redis == pytest.approx(62e6)


def test_designs_are_what_the_page_says() -> None:
    use = {each.name: each.use for each in DESIGNS}
    assert use["A"] == pytest.approx(0.977, abs=0.001)
    assert use["B"] == pytest.approx(1.0)
    assert use["D, peak"] > 1


def _small(design: Design) -> Design:
    """A tenth of it, so that a test is quick; its utilisation stays."""
    return replace(design, rps=design.rps / 10, gpus=max(1, design.gpus // 10))


def test_a_replay_finds_who_holds_a_design(monkeypatch: pytest.MonkeyPatch) -> None:
    # One turn above the mean and one below it.
    monkeypatch.setattr("batching.capacity.designs._DURATION_S", 20.0)

    def make(name: str, max_batch_size: int, max_wait_s: float) -> object:
        return lambda: _policy(max_batch_size)

    by_name = {each.name: each for each in DESIGNS}
    held, broken = (
        replay(design, ["idle"], make, Overheads())  # type: ignore[arg-type]
        for design in (by_name["E"], by_name["D, peak"])
    )
    assert held.outcomes["idle"].holds_even
    assert held.outcomes["idle"].smallest_even == 4
    assert held.at_70 == 5
    peak = broken.outcomes["idle"]
    assert not peak.holds_even
    assert peak.smallest_even == 6
    assert peak.smallest_uneven is not None
    assert peak.smallest_uneven >= 6
    assert broken.queueing_wait_s == math.inf


def test_a_fleet_without_headroom_does_not_survive_uneven_traffic() -> None:
    """The designs' arithmetic leaves bursts out: 97.7 % on average is 117 % for ten seconds."""
    design = _small(DESIGNS[0])
    even, uneven = (
        simulate(design.scenario(lambda: WhenIdle(64), uneven=each, overheads=Overheads())) for each in (False, True)
    )
    assert even.p99_ms is not None
    assert uneven.p99_ms is not None
    assert uneven.p99_ms > 1_000
    assert even.offered_rps == pytest.approx(uneven.offered_rps, rel=0.02)
    starts = [int(at // 10) for at, _ in uneven.batch_starts]
    assert len(list(itertools.groupby(starts))) >= 6
