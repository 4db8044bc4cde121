"""The first lines of the operations page."""

from __future__ import annotations

import pytest

from config.tiers import Tier
from tasks.fleet.process_register import RoleRow
from tasks.fleet.queue_reader import Waiting
from tasks.fleet.registry_reader import ExecutorRow, QueueRow, WorkerRow
from tasks.observability.slo import Objective
from webapp.ops.health_findings import Finding, Lately, Standing, findings, status

TRACEBACK = """Traceback (most recent call last):
  File "m.py", line 1, in load
    device.find()
    ^^^^^^^^^^^
NoGpu: none
"""
OBJECTIVES = {tier: Objective(1.0, 0.99) for tier in Tier}


def worker(*rows: ExecutorRow, state: str = "running", name: str = "w1") -> WorkerRow:
    return WorkerRow(name, "host", 1, 0.0, rows, state, node=f"{name}@host")


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
    lately: Lately = Lately(healthy_before=1),  # noqa: B008 - frozen
    paused: dict[str, frozenset[Tier]] | None = None,
) -> list[Finding]:
    healthy = workers if healthy is None else healthy
    return findings(models, Waiting(list(queues)), workers, healthy, standings or {}, OBJECTIVES, lately, paused)


def test_when_all_is_well_there_is_nothing_to_say() -> None:
    assert found(queues=(QueueRow("a", "paid", 500, 900),), standings={Tier.PAID: standing(0.999, 0.1)}) == []


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({"healthy": ()}, "bad", "No worker takes batches"),
        (
            {"workers": (worker(executor(), executor(state="starting", error="its device failed\nlog")),)},
            "warn",
            "a/0 on w1@host is being replaced: its device failed",
        ),
        ({"models": ("a", "b")}, "bad", "b is not served"),
        (
            {"workers": (worker(executor()), worker(name="w2")), "healthy": (worker(executor()),)},
            "warn",
            "1 worker (w2@host) is silent",
        ),
        (
            {"workers": (worker(executor()), worker(state="stopping", name="w2")), "healthy": (worker(executor()),)},
            "warn",
            "shutting down",
        ),
        ({"standings": {Tier.FREE: standing(0.5, 50.0)}}, "bad", "free: 50.0%"),
        ({"standings": {Tier.FREE: standing(0.97, 3.0)}}, "warn", "3.0 times"),
        # A budget of a twentieth burns at twelve times its rate, and two in three are sent away: not soon.
        ({"standings": {Tier.FREE: standing(0.4, 12.0)}}, "bad", "12.0 times"),
        ({"lately": Lately({Tier.FREE: 100}, {Tier.FREE: 60}, 0, 1)}, "bad", "free: 60% of the requests"),
        ({"lately": Lately({Tier.PAID: 100}, {Tier.PAID: 2}, 0, 1)}, "warn", "paid: 2% of the requests"),
        ({"lately": Lately({}, {}, 3, 1)}, "warn", "3 requests were given up"),
        ({"lately": Lately(healthy_before=1, roles=frozenset({"web"}))}, "warn", "No ops worker runs"),
        (
            {"lately": Lately(healthy_before=1, silent=(RoleRow("x", "web", "web@host", "host", 7, 0.0),))},
            "warn",
            "web@host (pid 7) is silent: no heartbeat arrives",
        ),
        ({"lately": Lately(healthy_before=1, differences=("a is configured differently",))}, "warn", "differently."),
        ({"queues": (QueueRow("a", "free", 7, 2500),)}, "bad", "a.free: 7 waiting, the oldest for 2.5 s"),
        (
            {"workers": (worker(executor(), executor(state="failed", error=TRACEBACK)),)},
            "warn",
            "a/0 on w1@host does not start: NoGpu: none",
        ),
        ({"workers": (worker(executor(breaker="open")),)}, "warn", "breaker open"),
        ({"workers": (worker(executor(busy=0.97)),)}, "warn", "busy 97%"),
        (
            {
                "workers": (worker(executor(busy=0.97, rate_rps=100.0)),),
                "queues": (QueueRow("a", "free", 1, 10, 60.0), QueueRow("a", "paid", 1, 1, 35.0)),
            },
            "warn",
            "busy 97% of the time: 95 requests a second are admitted, and their capacity is 100",
        ),
        ({"lately": Lately(healthy_before=3)}, "warn", "1 of the 3 workers"),
        (
            {"workers": (worker(executor()), worker(state="drained", name="w2")), "healthy": (worker(executor()),)},
            "warn",
            "1 worker (w2@host) is drained",
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
            standings={Tier.PAID: standing(0.96, 4.0)},
        )
    ]
    assert levels == ["bad", "warn", "warn"]


def test_busy_with_small_batches_is_no_finding() -> None:
    """A policy that lets nobody wait keeps an executor busy at a third of what it can do."""
    busy = worker(executor(busy=0.97, rate_rps=100.0))
    assert found(workers=(busy,), queues=(QueueRow("a", "free", 1, 10, 30.0),)) == []


def test_few_refusals_and_old_letters_are_no_finding() -> None:
    assert found(lately=Lately({Tier.FREE: 1000}, {Tier.FREE: 3}, 0, 1)) == []


def test_the_status_is_that_of_the_health_page() -> None:
    up, lame = worker(executor()), worker(executor(state="failed"))
    assert status(["a"], [up], [up]) == "healthy"
    assert status(["a", "b"], [up], [up]) == "degraded"
    assert status(["a"], [up, lame], [up]) == "degraded"
    assert status(["a"], [lame], [lame]) == "unhealthy"
