"""The claim loop with a Redis that comes and goes, executors that die, and faults of our own: nothing is lost, and
nothing is answered twice.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.claim.store import Settled
from batching.executor import Lost
from batching.policy import Breaker, WhenIdle
from batching.ports import BatchInfo
from batching.request import Done, Failed, Ok, Outcome, Rejected, Request, Work
from config.tiers import TIERS
from tasks.protocol.results import CeleryCodec
from tests.fakes.claim_rig import MODEL, Eager, Make, Rig, ScriptedExecutor, done, echo
from tests.fakes.messages import celery_message


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "loop.TICK_S": 0.005,
        "collector.TICK_S": 0.005,
        "loop_state.TICK_S": 0.005,
        "loop_state.LOOK_EVERY_S": 0.005,
        "loop._MAX_BACKOFF_S": 0.002,
        "settler._FIRST_BACKOFF_S": 0.001,
        "settler._MAX_BACKOFF_S": 0.002,
    }.items():
        monkeypatch.setattr(f"batching.claim.{name}", seconds)


class Away:
    """A Redis that fails the named call the first few times."""

    def __init__(self, call: str, times: int) -> None:
        self._call = call
        self.left = times

    def __call__(self, call: str) -> None:
        if call == self._call and self.left:
            self.left -= 1
            raise RedisConnectionError("away")


@pytest.mark.parametrize("lost_reply", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["look", "claim", "finish", "wait_for_bells"])
def test_a_redis_that_is_away_for_a_while_costs_nobody_an_answer(make: Make, call: str, lost_reply: bool) -> None:
    rig = make(policy=Eager(size=2))
    away = Away(call, times=5)
    if lost_reply:
        rig.store.after = away
    else:
        rig.store.before = away
    if call == "wait_for_bells" and not lost_reply:
        rig.start()
        rig.until(lambda: not away.left)
    rig.put("a", "b", "c")
    if call != "wait_for_bells":
        rig.start()
    elif lost_reply:
        away.left = 0
        rig.start()
    assert {reply.status for reply in rig.settled("a", "b", "c")} == {"SUCCESS"}
    assert not away.left
    assert Counter(rig.executor_inputs()) == Counter(["a", "b", "c"])
    rig.until(lambda: not rig.store.leases)


def test_a_batch_is_held_from_its_claim_until_it_is_settled(make: Make) -> None:
    """Whoever looks for leases that nobody knows of must not find one whose outcome Redis is about to be told."""
    rig = make(policy=Eager(size=2))
    away = Away("finish", times=20)
    held: dict[str, set[frozenset[str]]] = {}

    def before(call: str) -> None:
        held.setdefault(call, set()).add(rig.loop.held)
        away(call)

    rig.store.before = before
    rig.put("a", "b")
    rig.start()
    assert {reply.status for reply in rig.settled("a", "b")} == {"SUCCESS"}
    rig.until(lambda: not rig.loop.held)
    assert held["claim"] == held["finish"] == {frozenset({"w-0-1"})}
    assert not away.left


def test_the_outcomes_are_held_until_redis_takes_them(make: Make) -> None:
    rig = make(policy=Eager(size=1))
    refused = threading.Semaphore(0)
    back = threading.Event()

    def away(call: str) -> None:
        if call == "finish" and not back.is_set():
            refused.release()
            raise RedisConnectionError("away")

    rig.store.before = away
    rig.put("a")
    rig.start()
    for _ in range(3):
        assert refused.acquire(timeout=30)
    assert rig.store.results == {}
    back.set()
    assert rig.settled("a")[0].status == "SUCCESS"
    assert len(rig.executor.taken) == 1


def test_giving_back_waits_for_redis_too(make: Make) -> None:
    rig = make(ScriptedExecutor(lambda work: None if len(rig.executor.taken) == 1 else echo(work)))
    rig.store.before = Away("give_back", times=3)
    rig.put("a")
    rig.start()
    rig.until(lambda: rig.executor.taken)
    rig.executor.say(Lost(rig.executor.taken[0].batch_id, (), "killed"))
    assert rig.settled("a")[0].status == "SUCCESS"
    assert rig.witness.tries("a") == [(1, 0), (2, 1)]


def test_a_retry_whose_reply_was_lost_counts_once(make: Make) -> None:
    rig = make(
        ScriptedExecutor(
            lambda work: echo(work) if len(rig.executor.taken) > 1 else done(work, [Failed("busy", retryable=True)])
        )
    )
    rig.store.after = Away("put_aside", times=1)
    rig.put("a")
    rig.start()
    rig.settled("a")
    assert rig.witness.tries("a") == [(1, 0), (2, 0)]


def test_a_claim_that_was_never_heard_of_again_is_given_back_at_the_end(make: Make) -> None:
    rig = make()
    asked = threading.Semaphore(0)

    def deaf(call: str) -> None:
        if call == "claim":
            asked.release()
            raise RedisConnectionError("away")

    rig.store.after = deaf
    rig.put("a", "b")
    rig.start()
    for _ in range(3):
        assert asked.acquire(timeout=30)
    rig.loop.stop(5.0)
    assert rig.store.leases == {}
    assert rig.waiting == 2


def test_leaving_does_not_wait_for_a_redis_that_stays_away(make: Make) -> None:
    rig = make(ScriptedExecutor(lambda work: None))
    rig.put("a")
    rig.start()
    rig.until(lambda: rig.executor.taken)

    def away(call: str) -> None:
        raise RedisConnectionError("away")

    rig.store.before = away
    stopping = threading.Thread(target=rig.loop.stop, args=(0.0,))
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()


class TestFaultsOfOurOwn:
    """No request may stay in the lease of a worker that lives: nobody would ever take it out again."""

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_an_executor_that_breaks_its_contract(self, make: Make, count: int) -> None:
        rig = make(ScriptedExecutor(lambda work: done(work, [Ok(b"1")] * count)), breaker=Breaker(failures=1000))
        rig.put("a", "b")
        rig.start()
        for task_id in ("a", "b"):
            if count == 1:
                # Alone, one output is its own.
                rig.settled(task_id)
            else:
                assert rig.error(task_id)[1].code == "INFERENCE_FAILED"
        rig.until(lambda: not rig.store.leases)

    def test_an_answer_to_a_batch_of_somebody_elses(self, make: Make) -> None:
        rig = make(ScriptedExecutor(lambda work: None))
        rig.put("a")
        rig.start()
        rig.until(lambda: rig.executor.taken)
        rig.executor.say(Done("other-batch", 0.1, [Ok(b"2")]))
        rig.executor.say(Lost("other-batch", ("and-another",), "killed"))
        rig.executor.say(echo(rig.executor.taken[0]))
        assert bytes(rig.settled("a")[0].result) == b'"a"'

    def test_a_result_that_cannot_be_written(self, make: Make) -> None:
        class Codec(CeleryCodec):
            def encode(self, request: Request, outcome: Outcome, batch: BatchInfo) -> Settled:
                if request.id == "odd" and isinstance(outcome, Ok):
                    raise RuntimeError("no words for it")
                return super().encode(request, outcome, batch)

            def encode_all(self, outcomes: list[tuple[Request, Outcome]], batch: BatchInfo) -> list[Settled]:
                return [self.encode(request, outcome, batch) for request, outcome in outcomes]

        rig = make(codec=Codec(60_000))
        rig.put("a", "odd", "b")
        rig.start()
        assert {reply.status for reply in rig.settled("a", "b")} == {"SUCCESS"}
        assert rig.error("odd")[1].code == "INFERENCE_FAILED"
        rig.until(lambda: not rig.store.leases)

    def test_a_message_that_breaks_the_reader(self, make: Make) -> None:
        class Codec(CeleryCodec):
            def decode(self, entry: Any) -> Request:
                if b'"odd"' in entry.message:
                    raise RuntimeError("a fault in the reader")
                return super().decode(entry)

            def decode_fresh(self, entries: Any, now_ms: int) -> list[Request | None]:
                raise RuntimeError("a fault in the reader of all")

        rig = make(codec=Codec(60_000))
        rig.put("a", "odd", "b")
        rig.start()
        rig.settled("a", "b")
        rig.until(lambda: rig.store.letters)
        (letter,) = rig.store.letters.values()
        assert b'"odd"' in letter.message
        rig.until(lambda: not rig.store.leases)

    def test_a_batch_that_the_executor_chokes_on(self, make: Make) -> None:
        def choke(work: Work) -> Done:
            if b'"odd"' in work.inputs:
                raise ValueError("cannot send that")
            return echo(work)

        rig = make(ScriptedExecutor(choke))
        rig.put("a", "odd", "b")
        rig.start()
        assert {reply.status for reply in rig.settled("a", "b")} == {"SUCCESS"}
        assert rig.error("odd")[1].code == "INFERENCE_FAILED"
        assert rig.loop.in_hand == 0

    def test_a_follow_up_that_cannot_be_sent_does_not_hold_the_answer_back(self, make: Make) -> None:
        class FollowUp:
            def __init__(self) -> None:
                self.errors: list[Exception] = [OperationalError("away"), OperationalError("away"), TypeError("never")]

            def follow(self, request: Request, outcome: Outcome) -> None:
                raise self.errors.pop(0)

        follow_up = FollowUp()
        rig = make(follow_up=follow_up)
        rig.put_raw(celery_message([1], link={"task": "next", "args": [], "kwargs": {}, "options": {}}, task_id="a"))
        rig.start()
        assert rig.settled("a")[0].status == "SUCCESS"
        assert follow_up.errors == []


class Chaos:
    """Random outages on both sides of every call, random deaths, random outcomes; then peace."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.peace = threading.Event()
        self.inside: list[str] = []
        self.say: Callable[[Any], None] = lambda event: None

    def outage(self, call: str) -> None:
        if not self.peace.is_set() and self.chance(0.15):
            raise RedisConnectionError("away")

    def chance(self, probability: float) -> bool:
        with self._lock:
            return self._rng.random() < probability

    def answer(self, work: Work) -> Done | None:
        """Batches are answered in order, some late, some never: with the death of the executor."""
        with self._lock:
            self.inside.append(work.batch_id)
        if not self.peace.is_set() and self.chance(0.1):
            self._die()
            return None
        outcomes: list[Ok | Rejected | Failed] = []
        for each in work.inputs:
            if not self.peace.is_set() and self.chance(0.1):
                outcomes.append(Failed("busy", retryable=self.chance(0.5)))
            else:
                outcomes.append(Ok(each))
        with self._lock:
            self.inside.remove(work.batch_id)
        return done(work, outcomes)

    def _die(self) -> None:
        with self._lock:
            ids, self.inside = self.inside, []
        self.say(Lost(ids[0], tuple(ids[1:]), "killed"))


def run_through(chaos: Chaos, make: Make, ids: Sequence[str]) -> Rig:
    rig = make(
        ScriptedExecutor(chaos.answer),
        WhenIdle(8) if chaos.chance(0.5) else Eager(size=5),
        breaker=Breaker(failures=1000),
    )
    chaos.say = rig.executor.say
    rig.store.before = rig.store.after = chaos.outage
    rig.start()
    for i, task_id in enumerate(ids):
        rig.put(task_id, tier=TIERS[i % 3], limit_in_ms=-1 if i % 11 == 5 else 60_000)
        if i % 13 == 7:
            rig.store.take_back(task_id)
    chaos.peace.set() if chaos.chance(0.2) else None
    rig.until(lambda: len(rig.store.results) >= len(ids) // 2)
    chaos.peace.set()
    rig.settled(*ids)
    rig.until(lambda: not rig.store.leases and not rig.loop.in_hand)
    return rig


@pytest.mark.parametrize("seed", range(25))
def test_every_claim_is_settled_exactly_once(make: Make, seed: int) -> None:
    ids = [f"t{i}" for i in range(60)]
    rig = run_through(Chaos(seed), make, ids)
    assert Counter(rig.store.stored) == Counter(ids)
    assert rig.waiting == 0
    assert rig.store.put_aside_count(MODEL) == 0
    for task_id, reply in zip(ids, rig.settled(*ids), strict=True):
        if reply.status == "SUCCESS":
            assert bytes(reply.result) == f'"{task_id}"'.encode()
    told = [reply for _, replies in rig.store.replies for reply in replies]
    assert len(told) == len(ids)
