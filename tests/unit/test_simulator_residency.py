"""Several models on one device in virtual time, by the worker's own policy."""

from __future__ import annotations

import pytest

from batching.policy import WhenIdle
from batching.simulator import Affine, Poisson, Scenario, simulate
from batching.simulator.residency import OnDemand, Shared, simulate_residency

RATES_RPS = {"half": 10.0, **dict.fromkeys("bcdef", 2.0)}
LOAD_S = 0.3


def on_demand(room: float, load_s: float = LOAD_S, duration_s: float = 60.0) -> Shared:
    models = {
        name: OnDemand(
            Scenario(
                arrivals=Poisson(rate),
                service=Affine(0.01, 0.001),
                policy=lambda: WhenIdle(max_batch_size=16),
                duration_s=duration_s,
            ),
            {"models": 1.0},
            (load_s,),
            unload_s=0.05,
        )
        for name, rate in RATES_RPS.items()
    }
    return simulate_residency(models, {"models": room}, seed=3)


def test_six_models_with_room_for_two_lose_no_request_and_never_take_more_room() -> None:
    shared = on_demand(room=2.0)
    assert shared.failed == 0
    assert shared.most == {"models": 2.0}
    assert all(shared.loads.values())
    # A place is loading for at most half of the time.
    assert sum(map(len, shared.loads.values())) <= 2 * 60.0 / (2 * LOAD_S) + 2
    # The most asked model stays; the others take turns.
    assert len(shared.loads["half"]) <= min(len(shared.loads[name]) for name in "bcdef") / 2
    assert (shared.reports["half"].p95_ms or 0) < min(shared.reports[name].p95_ms or 0 for name in "bcdef")


def test_with_room_for_all_each_is_loaded_once_and_served_as_if_it_were_alone() -> None:
    shared = on_demand(room=6.0)
    assert {len(each) for each in shared.loads.values()} == {1}
    alone = simulate(
        Scenario(
            arrivals=Poisson(RATES_RPS["half"]),
            service=Affine(0.01, 0.001),
            policy=lambda: WhenIdle(max_batch_size=16),
            duration_s=60.0,
        ),
        seed=3,
    )
    assert shared.reports["half"].requests == alone.requests
    assert shared.reports["half"].p50_ms == pytest.approx(alone.p50_ms, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_slower_loads_make_callers_wait_longer() -> None:
    first, again, slower = on_demand(2.0), on_demand(2.0), on_demand(2.0, load_s=0.6)
    assert first.loads == again.loads
    assert {name: each.p95_ms for name, each in first.reports.items()} == {
        name: each.p95_ms for name, each in again.reports.items()
    }
    assert (slower.reports["b"].p95_ms or 0) > (first.reports["b"].p95_ms or 0)
