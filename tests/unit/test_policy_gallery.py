"""The default policy against all others on every workload, in virtual time; a short form of `make policies`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batching.policy import POLICIES
from batching.simulator.workloads import WORKLOADS, Workload
from tools.policy_gallery import behind_best, run

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_adaptive_is_within_five_percent_of_the_best_of_the_others(workload: Workload) -> None:
    short = replace(workload, duration_s=workload.duration_s / 12)
    reports = {name: run(short, name) for name in POLICIES}
    assert behind_best(short, reports) <= 0.05


def test_the_same_seed_is_the_same_run() -> None:
    short = replace(WORKLOADS[3], duration_s=3.0)
    assert run(short, "adaptive", seed=7) == run(short, "adaptive", seed=7)
    assert run(short, "adaptive", seed=7) != run(short, "adaptive", seed=8)


@pytest.mark.parametrize("name", POLICIES)
def test_no_tier_starves_under_any_policy(name: str) -> None:
    """Twice what one executor can do, most of it of the highest tier: all tiers are served all the time."""
    from batching.policy import make
    from batching.simulator import Affine, Poisson, Scenario, simulate

    report = simulate(
        Scenario(
            arrivals=Poisson(2400),
            service=Affine(0.020, 0.0005),
            policy=lambda: make(name, 64, None, {}),
            duration_s=5.0,
            tiers=(0.8, 0.1, 0.1),
            drain_s=0.0,
        )
    )
    answered = [len(took) for took in report.latencies_s]
    total = sum(answered)
    assert answered[1] >= 0.15 * total
    assert answered[2] >= 0.08 * total
