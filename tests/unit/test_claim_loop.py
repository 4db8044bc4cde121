"""The claim loop: what it hands to the executor, and what becomes of each request."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import msgspec
import pytest

from batching.claim.loop_state import FIRST_TRY_S
from batching.executor import Lost
from batching.policy import Decision, Dispatch, FixedWindow, QueueView, Reason
from batching.request import Done, Failed, Ok, Outcome, Rejected, Request, Work
from config.keys import Shard
from config.tiers import TIERS
from tests.fakes.claim_rig import MODEL, Eager, Make, Rig, ScriptedExecutor, done, echo
from tests.fakes.executor import InlineExecutor
from tests.fakes.messages import celery_message


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("loop.TICK_S", "collector.TICK_S", "loop_state.TICK_S", "loop_state.LOOK_EVERY_S"):
        monkeypatch.setattr(f"batching.claim.{name}", 0.01)


def inputs(work: Work) -> list[Any]:
    return [msgspec.json.decode(each) for each in work.inputs]


def test_every_answer_belongs_to_its_question(make: Make) -> None:
    sizes: list[int] = []

    def predict(values: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(values))
        return [f"answer to {each}" for each in values]

    rig = make(InlineExecutor(predict))
    rig.start()
    ids = [f"t{i}" for i in range(300)]
    for i, task_id in enumerate(ids):
        rig.put(task_id, tier=TIERS[i % 3])
    for task_id, reply in zip(ids, rig.settled(*ids), strict=True):
        assert reply.task_id == task_id
        assert json.loads(bytes(reply.result)) == f"answer to {task_id}"
    assert sum(sizes) == 300
    assert max(sizes) <= 8


def test_requests_that_wait_together_share_a_batch(make: Make) -> None:
    rig = make()
    rig.put("a", "b", "c")
    rig.start()
    rig.settled("a", "b", "c")
    assert [inputs(work) for work in rig.executor.taken] == [["a", "b", "c"]]
    (info, requests), = rig.witness.claims  # fmt: skip
    assert (info.model, info.version, info.size, info.reason) == (MODEL, "1", 3, Reason.IDLE)
    assert [each.id for each in requests] == ["a", "b", "c"]


def test_a_full_batch_says_so(make: Make) -> None:
    rig = make()
    rig.put(*map(str, range(9)))
    rig.start()
    rig.settled(*map(str, range(9)))
    assert [(info.size, info.reason) for info, _ in rig.witness.claims] == [(8, Reason.FULL), (1, Reason.IDLE)]


def test_a_window_is_kept_open_for_requests_of_known_age(make: Make) -> None:
    rig = make(policy=FixedWindow(8, max_wait_s=3600.0))
    rig.put(*map(str, range(7)))
    rig.start()
    rig.store.wait_for_bells([MODEL], 0.0)
    rig.put("7")
    rig.settled(*map(str, range(8)))
    assert [info.reason for info, _ in rig.witness.claims] == [Reason.FULL]


def test_parameters_travel_beside_their_inputs(make: Make) -> None:
    rig = make()
    rig.put_raw(celery_message([1], {"parameters": {"k": 1}}, task_id="a"))
    rig.put_raw(celery_message([2], task_id="b"))
    rig.start()
    rig.until(lambda: rig.executor.taken)
    (work,) = rig.executor.taken
    assert list(work.inputs) == [b"1", b"2"]
    assert [json.loads(each) for each in work.parameters] == [{"k": 1}, {}]


def test_one_outcome_each(make: Make) -> None:
    outcomes = {"a": Ok(b"1"), "b": Rejected("no"), "c": Failed("broke", "KeyError")}
    rig = make(ScriptedExecutor(lambda work: done(work, [outcomes[each] for each in inputs(work)])))
    rig.put("a", "b", "c")
    rig.start()
    assert bytes(rig.settled("a")[0].result) == b"1"
    assert rig.error("b")[1].code == "INPUT_REJECTED"
    error, details = rig.error("c")
    assert (error.exc_type, error.text, details.code) == ("KeyError", "broke", "INFERENCE_FAILED")
    assert set(rig.store.letters) == {"c"}
    assert rig.store.leases == {}


def test_a_failure_that_may_pass_is_tried_again(make: Make) -> None:
    def flaky(work: Work) -> Done:
        first = len(rig.executor.taken) == 1
        return done(
            work, [Failed("busy", retryable=True) if first and each == "b" else Ok(b"1") for each in inputs(work)]
        )

    rig = make(ScriptedExecutor(flaky))
    rig.put("a", "b")
    rig.start()
    assert [reply.status for reply in rig.settled("a", "b")] == ["SUCCESS", "SUCCESS"]
    assert rig.witness.tries("a") == [(1, 0)]
    assert rig.witness.tries("b") == [(1, 0), (2, 0)]
    assert [each.id for each in rig.witness.retries] == ["b"]


def test_retries_end(make: Make) -> None:
    rig = make(ScriptedExecutor(lambda work: done(work, [Failed("busy", retryable=True)])), max_attempts=2)
    rig.put("a")
    rig.start()
    assert rig.error("a")[0].text == "busy"
    assert rig.witness.tries("a") == [(1, 0), (2, 0)]
    assert json.loads(rig.store.letters["a"].record)["attempts"] == 2


def untouched_by_the_model(rig: Rig, task_id: str) -> None:
    rig.put("other")
    rig.start()
    rig.settled(task_id, "other")
    assert [inputs(work) for work in rig.executor.taken] == [["other"]]
    assert rig.store.leases == {}


@pytest.mark.parametrize("limits", [{"limit_in_ms": -1}, {"deadline_in_ms": -1, "limit_in_ms": -1}])
def test_the_expired_are_answered_without_the_model(make: Make, limits: dict[str, int]) -> None:
    rig = make()
    rig.put("late", **limits)
    untouched_by_the_model(rig, "late")
    assert rig.error("late")[1].code == "DEADLINE_EXCEEDED"


def test_who_could_not_be_in_time_is_answered_without_the_model(make: Make) -> None:
    class Careful(Eager):
        def decide(self, queue: QueueView, now: float) -> Decision:
            decision = super().decide(queue, now)
            return decision._replace(margin_s=60.0) if isinstance(decision, Dispatch) else decision

    rig = make(policy=Careful())
    rig.put("late", deadline_in_ms=30_000, limit_in_ms=30_000)
    rig.put("other", deadline_in_ms=3_600_000, limit_in_ms=3_600_000)
    rig.start()
    rig.settled("late", "other")
    assert [inputs(work) for work in rig.executor.taken] == [["other"]]
    error, details = rig.error("late")
    assert details.code == "DEADLINE_EXCEEDED"
    assert "before its batch was done" in error.text


def test_a_policy_is_shown_what_was_learnt_and_can_be_replaced(make: Make) -> None:
    seen: list[QueueView] = []

    class Watching(Eager):
        def decide(self, queue: QueueView, now: float) -> Decision:
            seen.append(queue)
            return super().decide(queue, now)

    rig = make(policy=Watching(size=2))
    rig.put("a", "b", "c")
    rig.start()
    rig.settled("a", "b", "c")
    rig.until(lambda: seen[-1].learnt.time.known)
    assert any(math.isfinite(view.due_at) for view in seen)
    rig.loop.state.learner.policy = Eager(size=1)
    rig.put("d", "e")
    rig.settled("d", "e")
    assert [len(work.inputs) for work in rig.executor.taken] == [2, 1, 1, 1]
    assert rig.loop.state.learner.learnt.time.known


def test_the_rate_falls_while_nobody_comes_under_a_policy_that_never_looks(make: Make) -> None:
    rig = make()
    rig.put(*map(str, range(40)))
    rig.start()
    rig.settled(*map(str, range(40)))
    high = rig.loop.state.learner.learnt.rate
    rig.until(lambda: rig.loop.state.learner.learnt.rate < high / 2 or not high)


def test_a_celery_clients_expired_task_is_answered_without_the_model(make: Make) -> None:
    rig = make()
    rig.put_raw(celery_message([1], expires=-5, task_id="late"))
    untouched_by_the_model(rig, "late")
    assert rig.error("late")[1].code == "DEADLINE_EXCEEDED"


def test_the_cancelled_are_answered_without_the_model(make: Make) -> None:
    rig = make()
    rig.put("back")
    rig.store.take_back("back")
    untouched_by_the_model(rig, "back")
    assert rig.settled("back")[0].status == "REVOKED"


def test_celerys_revoked_are_answered_without_the_model(make: Make) -> None:
    rig = make(revoked={"back"})
    rig.put_raw(celery_message([1], task_id="back"))
    untouched_by_the_model(rig, "back")
    assert rig.settled("back")[0].status == "REVOKED"


def test_suspects_that_used_up_their_attempts_are_given_up(make: Make) -> None:
    rig = make(max_attempts=3)
    rig.put("killer", attempt=3, lost=3)
    rig.put("other")
    rig.start()
    rig.settled("killer", "other")
    assert [inputs(work) for work in rig.executor.taken] == [["other"]]
    assert "3 processes ended" in rig.error("killer")[0].text
    assert set(rig.store.letters) == {"killer"}


def test_the_unreadable_are_answered_where_they_name_somebody_and_kept_where_not(make: Make) -> None:
    rig = make()
    rig.put_raw(b"rubbish")
    rig.put_raw(celery_message([1, {}, 3], task_id="odd"))
    untouched_by_the_model(rig, "odd")
    error, details = rig.error("odd")
    assert error.exc_type == "UnreadableMessage"
    assert details.code == "INFERENCE_FAILED"
    assert {letter.message for letter in rig.store.letters.values()} >= {b"rubbish"}


def test_what_is_not_yet_due_waits_without_an_attempt(make: Make) -> None:
    rig = make()
    rig.put_raw(celery_message([1], countdown=3600, task_id="later"))
    rig.put("now")
    rig.start()
    rig.settled("now")
    rig.until(lambda: rig.store.put_aside_count(MODEL) == 1)
    assert [inputs(work) for work in rig.executor.taken] == [["now"]]
    assert rig.store.leases == {}


def test_what_follows_is_sent_before_the_result_is_stored(make: Make) -> None:
    class FollowUp:
        def follow(self, request: Request, outcome: Outcome) -> None:
            seen.append((request.id, outcome, Shard().result(request.id) in rig.store.results))

    seen: list[tuple[str, Outcome, bool]] = []
    rig = make(follow_up=FollowUp())
    rig.put_raw(celery_message([1], link={"task": "next", "args": [], "kwargs": {}, "options": {}}, task_id="a"))
    rig.put("b")
    rig.start()
    rig.settled("a", "b")
    assert seen == [("a", Ok(b"1"), False)]


def two_in_hand(make: Make) -> tuple[Rig, list[Work]]:
    """A rig whose executor has the batches `a, b` and `c, d` and answers neither; what comes again it echoes."""
    gate: list[Work] = []

    def hold(work: Work) -> Done | None:
        gate.append(work)
        return None if len(gate) <= 2 else echo(work)

    rig = make(ScriptedExecutor(hold), Eager(size=2))
    rig.put("a", "b", "c", "d")
    rig.start()
    rig.until(lambda: len(gate) == 2)
    return rig, gate


def test_a_dead_executor_counts_for_those_inside_only(make: Make) -> None:
    rig, gate = two_in_hand(make)
    assert [inputs(work) for work in gate] == [["a", "b"], ["c", "d"]]
    rig.executor.say(Lost(gate[0].batch_id, (gate[1].batch_id,), "killed"))
    assert {reply.status for reply in rig.settled("a", "b", "c", "d")} == {"SUCCESS"}
    assert rig.witness.tries("a") == rig.witness.tries("b") == [(1, 0), (2, 1)]
    assert rig.witness.tries("c") == rig.witness.tries("d") == [(1, 0), (1, 0)]


def test_a_batch_that_ran_beside_the_front_one_is_suspected_as_well(make: Make) -> None:
    rig, gate = two_in_hand(make)
    rig.executor.say(Lost(gate[0].batch_id, (), "killed", beside=(gate[1].batch_id,)))
    assert {reply.status for reply in rig.settled("a", "b", "c", "d")} == {"SUCCESS"}
    for name in "abcd":
        assert rig.witness.tries(name) == [(1, 0), (2, 1)]


def test_a_batch_that_could_not_be_handed_over_goes_back_uncounted(make: Make) -> None:
    rig = make()
    rig.executor.gone = True
    rig.put("a")
    rig.start()
    rig.until(lambda: rig.witness.returns)
    rig.executor.gone = False
    rig.settled("a")
    assert set(rig.witness.tries("a")) == {(1, 0)}
    assert len(rig.executor.taken) == 1


def test_a_death_while_nothing_was_inside_blames_nobody(make: Make) -> None:
    rig = make()
    rig.start()
    rig.executor.say(Lost(None, (), "starting again"))
    rig.put("a")
    rig.settled("a")
    assert rig.witness.tries("a") == [(1, 0)]


def test_a_lone_caller_costs_one_claim_a_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batching.claim.loop_state.LOOK_EVERY_S", 30.0)
    monkeypatch.setattr("batching.claim.loop_state.TICK_S", 30.0)

    def predict(values: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        # So long that the loop waits for the executor.
        time.sleep(0.02)
        return values

    rig = make(InlineExecutor(predict))
    claims: list[str] = []
    rig.store.before = lambda call: claims.append(call) if call == "claim" else None
    rig.start()
    for number in range(10):
        rig.put(str(number))
        rig.settled(str(number))
    # The first claim is made on trust, and may come before the first request; the last one waits for an eleventh.
    assert len(claims) <= 12


def test_after_an_out_of_memory_batches_stay_within_what_had_room(make: Make) -> None:
    def answer(work: Work) -> Done:
        return done(work, [Ok(b"1") for _ in work.inputs], safe_size=3)

    rig = make(ScriptedExecutor(answer))
    rig.put(*map(str, range(14)))
    rig.start()
    rig.settled(*map(str, range(14)))
    assert [len(work.inputs) for work in rig.executor.taken] == [8, 3, 3]
    assert [work.safe_size for work in rig.executor.taken] == [None, 3, 3]
    assert rig.loop.state.safe_size == 3


def test_a_smaller_size_is_not_forgotten_for_a_larger_one(make: Make) -> None:
    learned = iter((2, 5))
    rig = make(ScriptedExecutor(lambda work: done(work, [Ok(b"1") for _ in work.inputs], safe_size=next(learned))))
    rig.start()
    for task_id in ("a", "b"):
        rig.put(task_id)
        rig.settled(task_id)
    assert rig.loop.state.safe_size == 2


def test_after_a_while_larger_batches_are_tried_again(make: Make) -> None:
    later = 0.0

    def answer(work: Work) -> Done:
        nonlocal later
        first = len(rig.executor.taken) == 1
        later = 0.0 if first else FIRST_TRY_S
        return done(work, [Ok(b"1") for _ in work.inputs], safe_size=4 if first else None)

    rig = make(ScriptedExecutor(answer), clock=lambda: time.monotonic() + later)
    rig.put(*map(str, range(12)))
    rig.start()
    rig.settled(*map(str, range(12)))
    assert [work.safe_size for work in rig.executor.taken] == [None, 4]
    assert rig.loop.state.safe_size is None


def test_an_operator_can_have_the_safe_size_forgotten(make: Make) -> None:
    def answer(work: Work) -> Done:
        return done(work, [Ok(b"1") for _ in work.inputs], safe_size=1 if len(rig.executor.taken) == 1 else None)

    rig = make(ScriptedExecutor(answer))
    rig.put("a", "b")
    rig.start()
    rig.settled("a", "b")
    rig.loop.forget_safe_size()
    rig.put("c")
    rig.settled("c")
    assert rig.loop.state.safe_size is None
    assert rig.executor.taken[-1].safe_size is None
