"""The claim loop and the breaker of its model."""

from __future__ import annotations

import threading
import time

import pytest

from batching.policy import Breaker, BreakerState
from batching.request import Failed
from tests.fakes.claim_rig import Make, ScriptedExecutor, done, echo


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("loop.TICK_S", "collector.TICK_S", "loop_state.TICK_S", "loop_state.LOOK_EVERY_S"):
        monkeypatch.setattr(f"batching.claim.{name}", 0.01)


def test_a_model_that_keeps_failing_gets_nothing_until_it_is_well(make: Make) -> None:
    breaker = Breaker(failures=1, open_s=3600.0)
    rig = make(ScriptedExecutor(lambda work: done(work, [Failed("broken") for _ in work.inputs])), breaker=breaker)
    rig.put("a", "b")
    rig.start()
    rig.settled("a", "b")
    rig.until(lambda: breaker.state is BreakerState.OPEN)
    rig.put("c")
    rig.executor.answer = echo
    breaker.reset()
    assert rig.settled("c")[0].status == "SUCCESS"
    assert breaker.state is BreakerState.CLOSED


def test_a_half_open_breaker_waits_at_the_bell_for_the_request_that_closes_it(make: Make) -> None:
    """And not for a chance look: where another worker takes all at once, it would stay half-open for ever."""
    breaker = Breaker(failures=1, open_s=3600.0)
    # Its pause is over just now, and the next one would outlast the test.
    breaker.record(time.monotonic() - 3600.0, ok=False)
    rig = make(breaker=breaker)
    waits = threading.Semaphore(0)

    def before(call: str) -> None:
        if call == "wait_for_bells":
            waits.release()

    rig.store.before = before
    rig.start()
    for _ in range(3):
        assert waits.acquire(timeout=30)
    assert breaker.state is BreakerState.HALF_OPEN
    rig.put("a")
    assert rig.settled("a")[0].status == "SUCCESS"
    rig.until(lambda: breaker.state is BreakerState.CLOSED)


def test_an_open_breaker_keeps_requests_in_their_queue(make: Make) -> None:
    breaker = Breaker(failures=1, open_s=3600.0)
    breaker.record(0.0, ok=False)
    turns = threading.Semaphore(0)
    permits = breaker.permits

    def counted(now: float) -> int:
        turns.release()
        return permits(0.0)

    breaker.permits = counted  # type: ignore[method-assign]
    rig = make(breaker=breaker)
    rig.put("a")
    rig.start()
    for _ in range(3):
        assert turns.acquire(timeout=30)
    assert rig.waiting == 1
    assert rig.executor.taken == []
