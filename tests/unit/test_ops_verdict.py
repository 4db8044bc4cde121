"""What the operations page says first."""

from __future__ import annotations

import pytest

from config.tiers import Tier
from tasks.fleet import ExecutorRow, QueueRow, WorkerRow
from tasks.slo import Objective
from webapp.ops.verdict import Finding, Standing, findings, status

OBJECTIVES = {tier: Objective(1.0, 0.99) for tier in Tier}


def worker(*rows: ExecutorRow, state: str = "running") -> WorkerRow:
    return WorkerRow("w", "host", 1, 0.0, rows, state)


def executor(model: str = "a", state: str = "ready", **more: object) -> ExecutorRow:
    return ExecutorRow(model, f"{model}/0", state, **more)  # type: ignore[arg-type]


def standing(attained: float, burn: float) -> Standing:
    return Standing(1000, 0.99, {"5m": attained, "1h": 1.0}, {"5m": burn, "1h": 0.0}, {"5m": 10, "1h": 10})


def found(
    models: tuple[str, ...] = ("a",),
    queues: tuple[QueueRow, ...] = (),
    workers: tuple[WorkerRow, ...] = (worker(executor()),),
    healthy: tuple[WorkerRow, ...] | None = None,
    standings: dict[Tier, Standing] | None = None,
    before: int = 1,
    paused: dict[str, frozenset[Tier]] | None = None,
) -> list[Finding]:
    healthy = workers if healthy is None else healthy
    return findings(models, queues, workers, healthy, standings or {}, OBJECTIVES, before, paused)


def test_when_all_is_well_there_is_nothing_to_say() -> None:
    assert found(queues=(QueueRow("a", "paid", 500, 900),), standings={Tier.PAID: standing(0.999, 0.1)}) == []


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({"healthy": ()}, "bad", "No worker takes batches"),
        ({"models": ("a", "b")}, "bad", "b is not served"),
        (
            {"workers": (worker(executor()), worker()), "healthy": (worker(executor()),)},
            "warn",
            "1 worker is no longer",
        ),
        (
            {"workers": (worker(executor()), worker(state="stopping")), "healthy": (worker(executor()),)},
            "warn",
            "way out",
        ),
        ({"standings": {Tier.FREE: standing(0.5, 50.0)}}, "bad", "free: 50.0%"),
        ({"standings": {Tier.FREE: standing(0.97, 3.0)}}, "warn", "3.0 times"),
        ({"queues": (QueueRow("a", "free", 7, 2500),)}, "bad", "a.free: 7 wait, the oldest for 2.5 s"),
        ({"workers": (worker(executor(), executor(state="failed", error="x\nNoGpu: none")),)}, "warn", "NoGpu"),
        ({"workers": (worker(executor(breaker="open")),)}, "warn", "breaker open"),
        ({"workers": (worker(executor(busy=0.97)),)}, "warn", "busy 97%"),
        (
            {
                "workers": (worker(executor(busy=0.97, rate_rps=100.0)),),
                "queues": (QueueRow("a", "free", 1, 10, 60.0), QueueRow("a", "paid", 1, 1, 35.0)),
            },
            "warn",
            "busy 97% of the time: 95 requests a second are let in, and they can do 100",
        ),
        ({"before": 3}, "warn", "1 of 3 workers"),
        (
            {"workers": (worker(executor()), worker(state="drained")), "healthy": (worker(executor()),)},
            "warn",
            "1 worker is drained",
        ),
        ({"paused": {"a": frozenset(Tier)}}, "warn", "a is paused: 0 wait"),
        ({"paused": {"a": frozenset({Tier.FREE, Tier.PAID})}}, "warn", "a is paused for paid, free: 0 wait"),
        (
            {
                "paused": {"a": frozenset({Tier.FREE})},
                "queues": (QueueRow("a", "free", 7, 10), QueueRow("a", "paid", 9, 1)),
            },
            "bad",
            "paused for free: 7 wait",
        ),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, object], level: str, words: str) -> None:
    (finding,) = found(**given)  # type: ignore[arg-type]
    assert finding.level == level
    assert words in finding.text


def test_what_callers_notice_comes_first() -> None:
    levels = [
        each.level
        for each in found(
            workers=(worker(executor(busy=1.0)),),
            queues=(QueueRow("a", "paid", 1, 5000),),
            standings={Tier.PAID: standing(0.9, 10.0)},
        )
    ]
    assert levels == ["bad", "warn", "warn"]


def test_busy_with_small_batches_is_no_finding() -> None:
    """A policy that lets nobody wait keeps an executor busy at a third of what it can do."""
    busy = worker(executor(busy=0.97, rate_rps=100.0))
    assert found(workers=(busy,), queues=(QueueRow("a", "free", 1, 10, 30.0),)) == []


def test_the_status_is_that_of_the_health_page() -> None:
    up, lame = worker(executor()), worker(executor(state="failed"))
    assert status(["a"], [up], [up]) == "healthy"
    assert status(["a", "b"], [up], [up]) == "degraded"
    assert status(["a"], [up, lame], [up]) == "degraded"
    assert status(["a"], [lame], [lame]) == "unhealthy"
