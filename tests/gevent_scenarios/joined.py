"""Callers who ask the same at the same time: one is computed, and each gets what is right for it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import gevent
import msgspec

from batching.claim.store import Blame, Verdict
from batching.fast_header import read_stamp
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Failed, Outcome
from config.tiers import Tier
from tasks.client.router import Pending
from tasks.errors import CallerGone, DeadlineExceeded, InferenceFailed, InputRejected, TaskCancelled
from tasks.protocol.caller import Caller
from tasks.protocol.results import CeleryCodec, Details, Reply, decode_details
from tests.fakes.worker import finish
from tests.gevent_scenarios.frontend_fixture import KEYS, NOBODY, SHARED, Stage, all_of, error_of, output
from tests.waiting import wait_until

ANSWERED = {"echo": "x"}


def ask(stage: Stage, tier: Tier = Tier.PAID, value: Any = "x", timeout_s: float = 30.0, **options: Any) -> Pending:
    return stage.client.submit(SHARED, tier, msgspec.json.encode(value), timeout_s=timeout_s, **options)


def asked(stage: Stage, tier: Tier = Tier.PAID, **options: Any) -> Pending:
    """The same, and it has reached Redis."""
    before = stage.waiting()
    pending = ask(stage, tier, **options)
    wait_until(lambda: stage.waiting() > before, "it is among those who wait")
    return pending


def later(stage: Stage, **options: Any) -> str:
    """The task id of one who polls."""
    before = stage.waiting()
    task_id = stage.client.receipt(ask(stage, waits=False, **options))
    wait_until(lambda: stage.waiting() > before)
    return task_id


def state(stage: Stage, task_id: str) -> str:
    reply = stage.client.result(task_id)
    assert reply is not None
    return reply.status


def about(reply: Reply) -> Details:
    return decode_details(reply.bunch)


def a_thousand_at_once_reach_the_model_once(stage: Stage) -> None:
    other = stage.make_client()
    mine = [ask(stage) for _ in range(500)]
    theirs = [other.submit(SHARED, Tier.FREE, b'"x"', timeout_s=30) for _ in range(500)]
    wait_until(lambda: stage.waiting() == 1000)
    assert sum(stage.depths(SHARED)) == 1
    assert stage.serve(SHARED) == 1
    replies = all_of(
        [*(partial(stage.client.wait, each) for each in mine), *(partial(other.wait, each) for each in theirs)]
    )
    assert [each.task_id for each in replies] == [each.task_id for each in (*mine, *theirs)]
    assert {bytes(each.result) for each in replies} == {b'{"echo":"x"}'}
    assert {about(each).batch_id for each in replies} == {about(replies[0]).batch_id}
    assert [about(each).tier for each in replies] == ["paid"] * 500 + ["free"] * 500
    assert sum(b'"collapsed":true' in bytes(each.bunch) for each in replies) == 999
    assert stage.waiting() == 0
    assert stage.client.router.size == other.router.size == 0


def what_differs_is_computed(stage: Stage) -> None:
    ann = Caller("k", "ann", Tier.PAID)
    others: list[dict[str, Any]] = [{"value": "y"}, {"parameters": b'{"k":1}'}, {"fresh": True}, {"caller": ann}]
    pendings = [ask(stage), *(ask(stage, **each) for each in others)]
    wait_until(lambda: sum(stage.depths(SHARED)) == 5)
    assert stage.serve(SHARED) == 5
    assert len({about(stage.client.wait(each)).batch_size for each in pendings}) == 1


def who_polls_finds_its_own_result(stage: Stage) -> None:
    first, second = later(stage), later(stage, request_id="mine")
    assert (state(stage, first), state(stage, second)) == ("PENDING", "PENDING")
    watching = gevent.spawn(stage.make_client().result, second, 30.0)
    assert stage.serve(SHARED) == 1
    for task_id in (first, second, stage.client.task_of("mine")):
        reply = stage.client.result(task_id)
        assert reply is not None
        assert (reply.status, reply.task_id, output(reply)) == ("SUCCESS", task_id, ANSWERED)
    assert output(watching.get(timeout=30)) == ANSWERED


def one_who_comes_while_it_is_computed_joins(stage: Stage) -> None:
    first = asked(stage)
    claimed = stage.claim(SHARED)
    second = asked(stage)
    assert sum(stage.depths(SHARED)) == 0
    finish(stage.store, claimed, SHARED)
    assert [output(stage.client.wait(each)) for each in (first, second)] == [ANSWERED] * 2
    third = ask(stage)
    wait_until(lambda: sum(stage.depths(SHARED)) == 1, "what is not kept is computed anew")
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(third)) == ANSWERED


def when_the_first_is_taken_back_the_next_takes_its_place(stage: Stage) -> None:
    first, second, third = later(stage), asked(stage), later(stage)
    assert stage.client.cancel(first) == "PENDING"
    assert stage.serve(SHARED) == 1
    assert sum(stage.depths(SHARED)) == 1
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(second)) == ANSWERED
    assert (state(stage, first), state(stage, third)) == ("REVOKED", "SUCCESS")
    assert stage.waiting() == 0


def when_the_first_hangs_up_the_next_takes_its_place(stage: Stage) -> None:
    gone: list[bool] = []
    first = asked(stage, hung_up=lambda: bool(gone))
    second = asked(stage)
    gone.append(True)
    assert isinstance(error_of(partial(stage.client.wait, first)), CallerGone)
    wait_until(lambda: stage.redis.zcard(KEYS.cancelled()))
    assert [stage.serve(SHARED), stage.serve(SHARED)] == [1, 1]
    assert output(stage.client.wait(second)) == ANSWERED


def when_all_are_taken_back_nothing_is_computed(stage: Stage) -> None:
    for task_id in [later(stage) for _ in range(5)]:
        assert stage.client.cancel(task_id) == "PENDING"
    (entry,) = stage.turn(SHARED)
    assert entry.verdict is Verdict.CANCELLED
    assert sum(stage.depths(SHARED)) == 0
    assert stage.waiting() == 0
    assert stage.redis.zcard(KEYS.cancelled()) == 0


def one_who_waits_may_be_taken_back_even_when_it_is_computed(stage: Stage) -> None:
    first, second = asked(stage), later(stage)
    claimed = stage.claim(SHARED)
    assert stage.client.cancel(second) == "PENDING"
    finish(stage.store, claimed, SHARED)
    assert output(stage.client.wait(first)) == ANSWERED
    assert state(stage, second) == "REVOKED"
    assert stage.client.cancel(second) == "REVOKED"
    assert stage.redis.zcard(KEYS.cancelled()) == 0


def one_whom_celery_has_revoked_stays_so(stage: Stage) -> None:
    first, second = asked(stage), later(stage)
    revoked = {"status": "REVOKED", "result": None, "task_id": second}
    stage.redis.set(KEYS.result(second), msgspec.json.encode(revoked))
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(first)) == ANSWERED
    assert state(stage, second) == "REVOKED"


def each_has_its_own_deadline(stage: Stage) -> None:
    first = asked(stage, timeout_s=0.3)
    hasty, patient = asked(stage, timeout_s=0.2), asked(stage)
    polling = later(stage, timeout_s=0.3)
    for each in (first, hasty):
        assert isinstance(error_of(partial(stage.client.wait, each)), DeadlineExceeded)
    # A caller is told a moment before its time is over.
    gevent.sleep(0.1)
    (entry,) = stage.turn(SHARED)
    assert entry.verdict is Verdict.EXPIRED
    assert state(stage, polling) == "FAILURE"
    late = stage.client.result(polling)
    assert about(late).code == "DEADLINE_EXCEEDED"  # type: ignore[arg-type]
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(patient)) == ANSWERED


def a_higher_tier_moves_all_of_them_up(stage: Stage) -> None:
    first, second = asked(stage, Tier.FREE), asked(stage, Tier.FREE)
    assert stage.depths(SHARED) == (0, 0, 1)
    third = asked(stage, Tier.ENTERPRISE)
    assert stage.depths(SHARED) == (1, 0, 0)
    fourth = asked(stage, Tier.PAID)
    assert stage.depths(SHARED) == (1, 0, 0)
    assert stage.serve(SHARED) == 1
    replies = [stage.client.wait(each) for each in (first, second, third, fourth)]
    assert [about(each).tier for each in replies] == ["free", "free", "enterprise", "paid"]
    assert [output(each) for each in replies] == [ANSWERED] * 4


def also_of_one_flush(stage: Stage) -> None:
    pendings = [ask(stage, tier) for tier in (Tier.FREE, Tier.FREE, Tier.PAID, Tier.FREE, Tier.ENTERPRISE, Tier.PAID)]
    wait_until(lambda: stage.waiting() == 6)
    assert stage.depths(SHARED) == (1, 0, 0)
    assert stage.serve(SHARED) == 1
    assert [output(stage.client.wait(each)) for each in pendings] == [ANSWERED] * 6


def whoever_moved_up_is_not_counted_where_it_was(stage: Stage) -> None:
    free, rich = Caller("k1", "a", Tier.FREE), Caller("k2", "a", Tier.ENTERPRISE)
    pendings = [asked(stage, Tier.FREE, caller=free), asked(stage, Tier.ENTERPRISE, caller=rich)]
    assert not stage.redis.exists(KEYS.held(KEYS.queue(SHARED, Tier.FREE)))
    assert stage.serve(SHARED) == 1
    assert [output(stage.client.wait(each)) for each in pendings] == [ANSWERED] * 2


def what_is_computed_already_cannot_move(stage: Stage) -> None:
    first = asked(stage, Tier.FREE)
    claimed = stage.claim(SHARED)
    second = asked(stage, Tier.ENTERPRISE)
    assert sum(stage.depths(SHARED)) == 0
    finish(stage.store, claimed, SHARED)
    assert [output(stage.client.wait(each)) for each in (first, second)] == [ANSWERED] * 2


def the_best_of_those_who_are_left_goes_on(stage: Stage) -> None:
    first = later(stage, tier=Tier.ENTERPRISE)
    free, paid = asked(stage, Tier.FREE), asked(stage, Tier.PAID)
    stage.client.cancel(first)
    stage.turn(SHARED)
    assert stage.depths(SHARED) == (0, 1, 0)
    assert stage.serve(SHARED) == 1
    assert [output(stage.client.wait(each)) for each in (free, paid)] == [ANSWERED] * 2


def a_dead_worker_costs_nobody_an_answer(stage: Stage) -> None:
    pendings = [asked(stage) for _ in range(3)]
    claimed = stage.claim(SHARED)
    pendings.append(asked(stage))
    stage.store.give_back(SHARED, claimed.batch_id, Blame.ATTEMPT)
    # What it had finished all the same comes too late.
    finish(stage.store, claimed, SHARED)
    assert stage.depths(SHARED) == (0, 1, 0)
    assert stage.waiting() == 4
    assert stage.serve(SHARED) == 1
    assert [output(stage.client.wait(each)) for each in pendings] == [ANSWERED] * 4


def what_the_model_says_of_the_question_is_said_to_all(stage: Stage) -> None:
    for wish, kind in (("reject", InputRejected), ("fail", InferenceFailed)):
        value = {"do": wish, "text": "because"}
        pendings = [asked(stage, value=value) for _ in range(3)]
        assert stage.serve(SHARED) == 1
        errors = [error_of(partial(stage.client.wait, each)) for each in pendings]
        assert [(type(each), each.message) for each in errors] == [(kind, "because")] * 3
    assert sum(stage.depths(SHARED)) == 0


def settle(stage: Stage, outcome: Outcome) -> None:
    claimed = stage.claim(SHARED)
    info = BatchInfo(claimed.batch_id, SHARED, "1", 1, Reason.IDLE, claimed.view.now_ms, 0.001)
    codec = CeleryCodec(60_000)
    stage.store.finish(
        claimed.batch_id, [codec.encode(codec.decode(each), outcome, info) for each in claimed.entries], last=True
    )


def a_failure_that_may_pass_is_tried_for_the_next(stage: Stage) -> None:
    first, second = asked(stage), asked(stage)
    settle(stage, Failed("not now", retryable=True))
    assert isinstance(error_of(partial(stage.client.wait, first)), InferenceFailed)
    stamp = read_stamp(cast("bytes", stage.redis.lindex(KEYS.queue(SHARED, Tier.PAID), -1)))
    assert stamp is not None
    assert (stamp.task_id, stamp.attempt, stamp.limit_ms) == (second.task_id, 1, stamp.deadline_ms)
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(second)) == ANSWERED


def one_that_got_lost_holds_nobody_up_beyond_its_deadline(stage: Stage) -> None:
    first, second = asked(stage, timeout_s=0.3), asked(stage)
    stage.redis.delete(KEYS.queue(SHARED, Tier.PAID))
    assert isinstance(error_of(partial(stage.client.wait, first)), DeadlineExceeded)
    gevent.sleep(0.1)
    third = ask(stage)
    wait_until(lambda: sum(stage.depths(SHARED)) == 1)
    assert stage.serve(SHARED) == 1
    assert [output(stage.client.wait(each)) for each in (second, third)] == [ANSWERED] * 2


def one_that_is_late_answers_itself_alone(stage: Stage) -> None:
    first = later(stage, timeout_s=0.3)
    claimed = stage.claim(SHARED)
    gevent.sleep(0.4)
    second = ask(stage)
    wait_until(lambda: sum(stage.depths(SHARED)) == 1)
    finish(stage.store, claimed, SHARED)
    assert state(stage, first) == "SUCCESS"
    assert stage.waiting() == 1
    assert stage.serve(SHARED) == 1
    assert output(stage.client.wait(second)) == ANSWERED


def a_broken_key_costs_a_computation(stage: Stage) -> None:
    first = asked(stage)
    (mark,) = cast("list[bytes]", stage.redis.keys("bunch:asked:*"))
    stage.redis.set(mark.replace(b"asked", b"joined"), "not a hash")
    second = ask(stage)
    wait_until(lambda: sum(stage.depths(SHARED)) == 2)
    stage.redis.delete(mark)
    stage.redis.lpush(mark, "not a string")
    third = ask(stage)
    wait_until(lambda: sum(stage.depths(SHARED)) == 3)
    assert stage.serve(SHARED) == 3
    assert [output(stage.client.wait(each)) for each in (first, second, third)] == [ANSWERED] * 3


def large_answers_reach_all(stage: Stage) -> None:
    pendings = [asked(stage, value={"do": "grow", "size": 100_000}) for _ in range(3)]
    assert stage.serve(SHARED) == 1
    assert {len(output(stage.client.wait(each))) for each in pendings} == {100_000}


def a_taken_back_one_is_told_so(stage: Stage) -> None:
    asked(stage)
    polled = later(stage)
    watching = gevent.spawn(stage.make_client().result, polled, 30.0)
    gevent.sleep(0.05)
    stage.client.cancel(polled)
    reply = watching.get(timeout=30)
    assert reply is not None
    assert isinstance(error_of(partial(_raise, reply)), TaskCancelled)


def _raise(reply: Reply) -> None:
    from tasks.client.client import error_of as as_error

    raise as_error(reply)


def models_that_share_nothing_are_as_before(stage: Stage) -> None:
    pendings = [stage.submit("x", NOBODY) for _ in range(3)]
    wait_until(lambda: stage.depth() == 3)
    assert stage.serve() == 3
    assert [output(stage.client.wait(each)) for each in pendings] == [ANSWERED] * 3
    assert stage.waiting() == 0
