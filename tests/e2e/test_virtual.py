"""The running system does what the simulator says; `python -m tests.benchmarks.virtual` compares many more figures."""

from __future__ import annotations

import pytest

from batching.policy import WhenIdle
from batching.simulator import Affine, Recorded, Scenario, simulate
from tests.e2e.client import Api

TRIES = 5


def test_who_waits_how_long_at_two_executors_is_as_simulated(api: Api) -> None:
    """Six at once for two that take 800 ms each: in pairs, each after the other."""
    virtual = simulate(
        Scenario(
            arrivals=Recorded([0.0] * 6),
            service=Affine(0.8),
            policy=lambda: WhenIdle(1),
            duration_s=1.0,
            max_batch_size=1,
            executors=2,
        )
    )
    expected_ms = sorted(1000 * float(each) for each in virtual.latencies_s[1])
    assert expected_ms == pytest.approx([800, 800, 1600, 1600, 2400, 2400])

    def is_as_simulated() -> bool:
        answers = api.all(range(6), "slow")
        assert {answer.status for answer in answers} == {200}
        real_ms = sorted(answer.json["latency_ms"] for answer in answers)
        pairs = list(zip(real_ms, expected_ms, strict=True))
        # Never faster than the model; who comes a moment later waits that much less.
        assert all(0.9 * expected <= real for real, expected in pairs), real_ms
        return all(real < 1.3 * expected for real, expected in pairs)

    # What else the machine does makes it slower, but not each time.
    assert any(is_as_simulated() for _ in range(TRIES))
