"""A claim loop with one caller at a time: the claim of the next request is sent before it comes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.claim.loop_state import LoopState
from batching.policy import Breaker, BreakerState, Decision, Dispatch, Look, QueueView, Reason, Wait, WhenIdle
from config.tiers import Tier
from tests.fakes.claim_rig import Make, Model, Rig, ScriptedExecutor


@pytest.fixture(autouse=True)
def _long_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim ends because it has waited for long."""
    for name in ("loop.TICK_S", "collector.TICK_S", "loop_state.TICK_S", "loop_state.LOOK_EVERY_S"):
        monkeypatch.setattr(f"batching.claim.{name}", 5.0)


class Starting(ScriptedExecutor):
    """Is ready or not, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = threading.Event()
        self.ready.set()

    def wait_ready(self, timeout_s: float) -> bool:
        return self.ready.wait(0.01)


class Waiting:
    """Follows the calls of a store: whether a claim waits for the bell now."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.calls: list[str] = []
        rig.store.before = self.calls.append
        rig.store.after = lambda call: self.calls.append(f"{call} ended")

    @property
    def of_the_loop(self) -> list[str]:
        """The calls without those of the thread that stores what was computed, at the same time."""
        return [each for each in self.calls if not each.startswith("finish")]

    def for_the_next(self) -> None:
        # Within the claim: a wait of its own would come after "claim ended".
        self._rig.until(lambda: self.of_the_loop[-2:] == ["claim", "wait_for_bells"])


def served_one(rig: Rig) -> Waiting:
    """Start a loop that has served one request, and waits for the next."""
    waiting = Waiting(rig)
    rig.put("first")
    rig.start()
    rig.settled("first")
    waiting.for_the_next()
    return waiting


def test_the_wait_and_the_claim_are_one_call(make: Make) -> None:
    rig = make(policy=WhenIdle(8))
    waiting = served_one(rig)
    for number in range(3):
        waiting.calls.clear()
        rig.put(str(number))
        rig.settled(str(number))
        waiting.for_the_next()
        assert waiting.of_the_loop == ["claim ended", "claim", "wait_for_bells"]
        assert waiting.calls.count("finish") == 1


def test_of_a_tier_that_was_paused_meanwhile_nothing_is_run(make: Make) -> None:
    rig = make(policy=WhenIdle(8))
    served_one(rig)
    rig.loop.gate.pause(frozenset({Tier.FREE.rank}))
    rig.put("paused", tier=Tier.FREE)
    rig.until(lambda: not rig.store.leases and rig.waiting == 1)
    rig.put("open")
    rig.settled("open")
    assert rig.executor_inputs() == ["first", "open"]
    assert rig.waiting == 1
    rig.loop.gate.pause(frozenset())
    rig.settled("paused")
    assert rig.witness.tries("paused") == [(1, 0)], "no attempt is counted"


def test_a_policy_that_is_used_meanwhile_decides_about_the_next_batch(make: Make) -> None:
    rig = make(policy=WhenIdle(8))
    served_one(rig)
    rig.loop.use(Model(version="2"), WhenIdle(2))
    with rig.store.lock:
        rig.put("a", "b", "c")
    rig.settled("a", "b", "c")
    assert [len(work.inputs) for work in rig.executor.taken] == [1, 2, 1]
    assert rig.executor_inputs() == ["first", "a", "b", "c"]
    assert rig.witness.tries("a") == [(1, 0)], "no attempt is counted"


def test_a_claim_that_is_sent_during_the_change_of_the_policy_has_not_the_size_of_before(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(policy=WhenIdle(8))
    waiting, use = served_one(rig), LoopState.use

    def meanwhile(*given: Any) -> None:
        rig.put("x")
        rig.settled("x")
        waiting.for_the_next()
        use(*given)

    monkeypatch.setattr(LoopState, "use", meanwhile)
    rig.loop.use(Model(version="2"), WhenIdle(2))
    with rig.store.lock:
        rig.put("a", "b", "c")
    rig.settled("a", "b", "c")
    assert [len(work.inputs) for work in rig.executor.taken] == [1, 1, 2, 1]


def test_nothing_is_run_of_a_model_whose_breaker_has_opened_meanwhile(make: Make) -> None:
    breaker = Breaker(failures=1, open_s=3600.0)
    rig = make(policy=WhenIdle(8), breaker=breaker)
    served_one(rig)
    rig.loop._breaker.record(0.0, ok=False)
    breaker._until = float("inf")
    rig.put("a")
    rig.until(lambda: rig.witness.returns or (not rig.store.leases and rig.waiting == 1))
    assert breaker.state is BreakerState.OPEN
    assert rig.executor_inputs() == ["first"]
    breaker.reset()
    rig.settled("a")
    assert rig.witness.tries("a") == [(1, 0)]


@pytest.mark.parametrize("lost_reply", [False, True], ids=["before", "after"])
def test_a_redis_that_goes_away_during_the_wait_costs_nobody_an_answer(make: Make, lost_reply: bool) -> None:
    rig = make(policy=WhenIdle(8))
    served_one(rig)
    left = ["away"]

    def away(call: str) -> None:
        if call == ("claim" if lost_reply else "wait_for_bells") and left:
            left.pop()
            raise RedisConnectionError("away")

    if lost_reply:
        rig.store.after = away
    else:
        rig.store.before = away
    for number in range(3):
        rig.put(str(number))
        rig.settled(str(number))
    assert not left
    assert rig.executor_inputs() == ["first", "0", "1", "2"]
    rig.until(lambda: not rig.store.leases)


@pytest.mark.parametrize("why", ["held", "executor"])
def test_what_was_claimed_without_a_reply_is_not_kept_while_nothing_can_be_run(make: Make, why: str) -> None:
    executor = Starting()
    rig = make(executor, policy=WhenIdle(8))
    served_one(rig)
    left = ["away"]

    def away(call: str) -> None:
        if call == "claim" and left:
            left.pop()
            if why == "held":
                rig.loop.gate.hold()
            else:
                executor.ready.clear()
            raise RedisConnectionError("away")

    rig.store.after = away
    rig.put("a")
    rig.until(lambda: not left and not rig.store.leases and rig.waiting == 1)
    rig.until(lambda: not rig.loop.held)
    assert rig.executor_inputs() == ["first"]
    executor.ready.set()
    rig.loop.gate.release()
    rig.settled("a")
    assert rig.witness.tries("a") == [(1, 0)], "no attempt is counted"


@dataclass(frozen=True)
class Pairs:
    """Waits for two, and knows before a look what it would do then."""

    name: ClassVar[str] = "pairs"

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand or queue.depth == 0:
            return Wait()
        go = Dispatch(2, Reason.IDLE)
        if queue.depth is None:
            return Look(go, least=2)
        return go if queue.depth >= 2 else Wait()


def test_where_a_policy_knows_what_follows_a_look_these_are_one_call(make: Make) -> None:
    rig = make(policy=Pairs())
    waiting = Waiting(rig)
    rig.start()
    waiting.for_the_next()
    waiting.calls.clear()
    rig.put("a")
    waiting.for_the_next()
    rig.put("b")
    rig.settled("a", "b")
    waiting.for_the_next()
    assert rig.executor_inputs() == ["a", "b"]
    assert waiting.calls.count("look") == 0
    assert waiting.calls.count("finish") == 1
    assert rig.waiting == 0
