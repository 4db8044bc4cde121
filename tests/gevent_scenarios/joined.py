"""Equal requests at the same time: one is computed, and each caller gets what is right for it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import gevent
import msgspec

from batching.claim.lease import Verdict
from batching.claim.store import Blame, Claim
from batching.fast_header import read_fast_header
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Failed, Outcome
from config.tiers import Tier
from tasks.client.pending import Pending
from tasks.errors import CallerGone, DeadlineExceeded, InferenceFailed, InputRejected, TaskCancelled
from tasks.protocol.caller import Caller
from tasks.protocol.results import CeleryCodec, Details, Reply, decode_details
from tests.fakes.worker import finish
from tests.gevent_scenarios.frontend_fixture import (
    LONG_S,
    NOBODY,
    SHARED,
    FrontendFixture,
    all_of,
    asking,
    error_of,
    output,
)
from tests.waiting import wait_until

ANSWERED = {"echo": "x"}


def ask(
    frontend: FrontendFixture, tier: Tier = Tier.PAID, value: Any = "x", timeout_s: float = LONG_S, **options: Any
) -> Pending:
    return frontend.client.submit(asking(SHARED, msgspec.json.encode(value), tier, timeout_s=timeout_s, **options))


def asked(frontend: FrontendFixture, tier: Tier = Tier.PAID, **options: Any) -> Pending:
    """Send the same request, and wait until it has reached Redis."""
    before = frontend.waiting()
    pending = ask(frontend, tier, **options)
    wait_until(lambda: frontend.waiting() > before, "it is among those who wait")
    return pending


def later(frontend: FrontendFixture, **options: Any) -> str:
    """Send the same request as a polling caller; returns its task id."""
    before = frontend.waiting()
    task_id = frontend.client.receipt(ask(frontend, waits=False, **options))
    wait_until(lambda: frontend.waiting() > before)
    return task_id


def state(frontend: FrontendFixture, task_id: str) -> str:
    reply = frontend.client.result(task_id)
    assert reply is not None
    return reply.status


def about(reply: Reply) -> Details:
    return decode_details(reply.bunch)


def a_thousand_at_once_reach_the_model_once(frontend: FrontendFixture) -> None:
    other = frontend.make_client()
    mine = [ask(frontend) for _ in range(500)]
    theirs = [other.submit(asking(SHARED, b'"x"', Tier.FREE)) for _ in range(500)]
    wait_until(lambda: frontend.waiting() == 1000)
    assert sum(frontend.depths(SHARED)) == 1
    assert frontend.serve(SHARED) == 1
    replies = all_of(
        [*(partial(frontend.client.wait, each) for each in mine), *(partial(other.wait, each) for each in theirs)]
    )
    assert [each.task_id for each in replies] == [each.task_id for each in (*mine, *theirs)]
    assert {bytes(each.result) for each in replies} == {b'{"echo":"x"}'}
    assert {about(each).batch_id for each in replies} == {about(replies[0]).batch_id}
    assert [about(each).tier for each in replies] == ["paid"] * 500 + ["free"] * 500
    assert sum(b'"collapsed":true' in bytes(each.bunch) for each in replies) == 999
    assert frontend.waiting() == 0
    assert frontend.client.waiting == other.waiting == 0


def what_differs_is_computed(frontend: FrontendFixture) -> None:
    ann = Caller("k", "ann", Tier.PAID)
    others: list[dict[str, Any]] = [{"value": "y"}, {"parameters": b'{"k":1}'}, {"fresh": True}, {"caller": ann}]
    pendings = [ask(frontend), *(ask(frontend, **each) for each in others)]
    wait_until(lambda: sum(frontend.depths(SHARED)) == 5)
    assert frontend.serve(SHARED) == 5
    assert len({about(frontend.client.wait(each)).batch_size for each in pendings}) == 1


def who_polls_finds_its_own_result(frontend: FrontendFixture) -> None:
    first, second = later(frontend), later(frontend, request_id="mine")
    assert (state(frontend, first), state(frontend, second)) == ("PENDING", "PENDING")
    watching = gevent.spawn(frontend.make_client().result, second, 30.0)
    assert frontend.serve(SHARED) == 1
    for task_id in (first, second, frontend.client.task_of("mine")):
        reply = frontend.client.result(task_id)
        assert reply is not None
        assert (reply.status, reply.task_id, output(reply)) == ("SUCCESS", task_id, ANSWERED)
    assert output(watching.get(timeout=30)) == ANSWERED


def one_who_comes_while_it_is_computed_joins(frontend: FrontendFixture) -> None:
    first = asked(frontend)
    claimed = frontend.claim(SHARED)
    second = asked(frontend)
    assert sum(frontend.depths(SHARED)) == 0
    finish(frontend.store, claimed, SHARED)
    assert [output(frontend.client.wait(each)) for each in (first, second)] == [ANSWERED] * 2
    third = ask(frontend)
    wait_until(lambda: sum(frontend.depths(SHARED)) == 1, "what is not kept is computed anew")
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(third)) == ANSWERED


def when_the_first_is_taken_back_the_next_takes_its_place(frontend: FrontendFixture) -> None:
    first, second, third = later(frontend), asked(frontend), later(frontend)
    assert frontend.client.cancel(first) == "PENDING"
    assert frontend.serve(SHARED) == 1
    assert sum(frontend.depths(SHARED)) == 1
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(second)) == ANSWERED
    assert (state(frontend, first), state(frontend, third)) == ("REVOKED", "SUCCESS")
    assert frontend.waiting() == 0


def when_the_first_hangs_up_the_next_takes_its_place(frontend: FrontendFixture) -> None:
    gone: list[bool] = []
    first = asked(frontend, hung_up=lambda: bool(gone))
    second = asked(frontend)
    gone.append(True)
    assert isinstance(error_of(partial(frontend.client.wait, first)), CallerGone)
    wait_until(frontend.cancelled)
    assert [frontend.serve(SHARED), frontend.serve(SHARED)] == [1, 1]
    assert output(frontend.client.wait(second)) == ANSWERED


def when_all_are_taken_back_nothing_is_computed(frontend: FrontendFixture) -> None:
    for task_id in [later(frontend) for _ in range(5)]:
        assert frontend.client.cancel(task_id) == "PENDING"
    (entry,) = frontend.turn(SHARED)
    assert entry.verdict is Verdict.CANCELLED
    assert sum(frontend.depths(SHARED)) == 0
    assert frontend.waiting() == 0
    assert frontend.cancelled() == 0


def one_who_waits_may_be_taken_back_even_when_it_is_computed(frontend: FrontendFixture) -> None:
    first, second = asked(frontend), later(frontend)
    claimed = frontend.claim(SHARED)
    assert frontend.client.cancel(second) == "PENDING"
    finish(frontend.store, claimed, SHARED)
    assert output(frontend.client.wait(first)) == ANSWERED
    assert state(frontend, second) == "REVOKED"
    assert frontend.client.cancel(second) == "REVOKED"
    assert frontend.cancelled() == 0


def one_whom_celery_has_revoked_stays_so(frontend: FrontendFixture) -> None:
    first, second = asked(frontend), later(frontend)
    revoked = {"status": "REVOKED", "result": None, "task_id": second}
    frontend.redis.set(frontend.result_key(second), msgspec.json.encode(revoked))
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(first)) == ANSWERED
    assert state(frontend, second) == "REVOKED"


def each_has_its_own_deadline(frontend: FrontendFixture) -> None:
    # In one flush: who comes when the first one is late does not join it.
    first, hasty, patient = (ask(frontend, timeout_s=each) for each in (1.0, 0.9, LONG_S))
    polls = ask(frontend, waits=False, timeout_s=1.0)
    for each in (first, hasty):
        assert isinstance(error_of(partial(frontend.client.wait, each)), DeadlineExceeded)
    # Its receipt may have come too late as well, which is another question.
    frontend.client.drop(polls)
    polling = polls.task_id
    frontend.outlive(frontend.next_message(SHARED, Tier.PAID))
    (entry,) = frontend.turn(SHARED)
    assert entry.verdict is Verdict.EXPIRED
    assert state(frontend, polling) == "FAILURE"
    late = frontend.client.result(polling)
    assert about(late).code == "DEADLINE_EXCEEDED"  # type: ignore[arg-type]
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(patient)) == ANSWERED


def a_higher_tier_moves_all_of_them_up(frontend: FrontendFixture) -> None:
    first, second = asked(frontend, Tier.FREE), asked(frontend, Tier.FREE)
    assert frontend.depths(SHARED) == (0, 0, 1)
    third = asked(frontend, Tier.ENTERPRISE)
    assert frontend.depths(SHARED) == (1, 0, 0)
    fourth = asked(frontend, Tier.PAID)
    assert frontend.depths(SHARED) == (1, 0, 0)
    assert frontend.serve(SHARED) == 1
    replies = [frontend.client.wait(each) for each in (first, second, third, fourth)]
    assert [about(each).tier for each in replies] == ["free", "free", "enterprise", "paid"]
    assert [output(each) for each in replies] == [ANSWERED] * 4


def also_of_one_flush(frontend: FrontendFixture) -> None:
    pendings = [
        ask(frontend, tier) for tier in (Tier.FREE, Tier.FREE, Tier.PAID, Tier.FREE, Tier.ENTERPRISE, Tier.PAID)
    ]
    wait_until(lambda: frontend.waiting() == 6)
    assert frontend.depths(SHARED) == (1, 0, 0)
    assert frontend.serve(SHARED) == 1
    assert [output(frontend.client.wait(each)) for each in pendings] == [ANSWERED] * 6


def whoever_moved_up_is_not_counted_where_it_was(frontend: FrontendFixture) -> None:
    free, rich = Caller("k1", "a", Tier.FREE), Caller("k2", "a", Tier.ENTERPRISE)
    pendings = [asked(frontend, Tier.FREE, caller=free), asked(frontend, Tier.ENTERPRISE, caller=rich)]
    assert not any(frontend.redis.exists(each.held(each.queue(SHARED, Tier.FREE))) for each in frontend.keys)
    assert frontend.serve(SHARED) == 1
    assert [output(frontend.client.wait(each)) for each in pendings] == [ANSWERED] * 2


def what_is_computed_already_cannot_move(frontend: FrontendFixture) -> None:
    first = asked(frontend, Tier.FREE)
    claimed = frontend.claim(SHARED)
    second = asked(frontend, Tier.ENTERPRISE)
    assert sum(frontend.depths(SHARED)) == 0
    finish(frontend.store, claimed, SHARED)
    assert [output(frontend.client.wait(each)) for each in (first, second)] == [ANSWERED] * 2


def the_best_of_those_who_are_left_goes_on(frontend: FrontendFixture) -> None:
    first = later(frontend, tier=Tier.ENTERPRISE)
    free, paid = asked(frontend, Tier.FREE), asked(frontend, Tier.PAID)
    frontend.client.cancel(first)
    frontend.turn(SHARED)
    assert frontend.depths(SHARED) == (0, 1, 0)
    assert frontend.serve(SHARED) == 1
    assert [output(frontend.client.wait(each)) for each in (free, paid)] == [ANSWERED] * 2


def a_dead_worker_costs_nobody_an_answer(frontend: FrontendFixture) -> None:
    pendings = [asked(frontend) for _ in range(3)]
    claimed = frontend.claim(SHARED)
    pendings.append(asked(frontend))
    frontend.store.give_back(SHARED, claimed.batch_id, Blame.ATTEMPT)
    # The result that it finished nevertheless comes too late.
    finish(frontend.store, claimed, SHARED)
    assert frontend.depths(SHARED) == (0, 1, 0)
    assert frontend.waiting() == 4
    assert frontend.serve(SHARED) == 1
    assert [output(frontend.client.wait(each)) for each in pendings] == [ANSWERED] * 4


def what_the_model_says_of_the_question_is_said_to_all(frontend: FrontendFixture) -> None:
    for wish, kind in (("reject", InputRejected), ("fail", InferenceFailed)):
        value = {"do": wish, "text": "because"}
        pendings = [asked(frontend, value=value) for _ in range(3)]
        assert frontend.serve(SHARED) == 1
        errors = [error_of(partial(frontend.client.wait, each)) for each in pendings]
        assert [(type(each), each.message) for each in errors] == [(kind, "because")] * 3
    assert sum(frontend.depths(SHARED)) == 0


def settle(frontend: FrontendFixture, outcome: Outcome) -> None:
    claimed = frontend.claim(SHARED)
    info = BatchInfo(claimed.batch_id, SHARED, "1", 1, Reason.IDLE, claimed.view.now_ms, 0.001)
    codec = CeleryCodec(60_000)
    frontend.store.finish(
        claimed.batch_id, [codec.encode(codec.decode(each), outcome, info) for each in claimed.entries], last=True
    )


def a_failure_that_may_pass_is_tried_for_the_next(frontend: FrontendFixture) -> None:
    first, second = asked(frontend), asked(frontend)
    settle(frontend, Failed("not now", retryable=True))
    assert isinstance(error_of(partial(frontend.client.wait, first)), InferenceFailed)
    stamp = read_fast_header(frontend.next_message(SHARED, Tier.PAID))
    assert stamp is not None
    assert (stamp.task_id, stamp.attempt, stamp.limit_ms) == (second.task_id, 1, stamp.deadline_ms)
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(second)) == ANSWERED


def one_that_got_lost_holds_nobody_up_beyond_its_deadline(frontend: FrontendFixture) -> None:
    first, second = ask(frontend, timeout_s=1.0), ask(frontend)
    wait_until(lambda: frontend.waiting() == 2)
    message, queues = (
        frontend.next_message(SHARED, Tier.PAID),
        [each.queue(SHARED, Tier.PAID) for each in frontend.keys],
    )
    frontend.redis.delete(*queues)
    assert isinstance(error_of(partial(frontend.client.wait, first)), DeadlineExceeded)
    frontend.outlive(message)
    third = ask(frontend)
    wait_until(lambda: sum(frontend.depths(SHARED)) == 1)
    assert frontend.serve(SHARED) == 1
    assert [output(frontend.client.wait(each)) for each in (second, third)] == [ANSWERED] * 2


def claimed_in_time(frontend: FrontendFixture) -> tuple[str, bytes, Claim]:
    """One that polls, its message and the claim with it: before its deadline, which is as short as that allows."""
    for timeout_s in (1.0, 4.0, 16.0):
        pending = ask(frontend, waits=False, timeout_s=timeout_s)
        wait_until(lambda: sum(frontend.depths(SHARED)) == 1)
        message = frontend.next_message(SHARED, Tier.PAID)
        claimed = frontend.claim(SHARED)
        frontend.client.drop(pending)
        if claimed.entries[0].verdict is Verdict.RUN:
            return pending.task_id, message, claimed
        finish(frontend.store, claimed, SHARED)
    raise AssertionError("it was always too late")


def one_that_is_late_answers_itself_alone(frontend: FrontendFixture) -> None:
    first, message, claimed = claimed_in_time(frontend)
    frontend.outlive(message)
    second = ask(frontend)
    wait_until(lambda: sum(frontend.depths(SHARED)) == 1)
    finish(frontend.store, claimed, SHARED)
    assert state(frontend, first) == "SUCCESS"
    assert frontend.waiting() == 1
    assert frontend.serve(SHARED) == 1
    assert output(frontend.client.wait(second)) == ANSWERED


def a_broken_key_costs_a_computation(frontend: FrontendFixture) -> None:
    first = asked(frontend)
    (mark,) = cast("list[bytes]", frontend.redis.keys("bunch:asked*:*"))
    frontend.redis.set(mark.replace(b"asked", b"joined"), "not a hash")
    second = ask(frontend)
    wait_until(lambda: sum(frontend.depths(SHARED)) == 2)
    frontend.redis.delete(mark)
    frontend.redis.lpush(mark, "not a string")
    third = ask(frontend)
    wait_until(lambda: sum(frontend.depths(SHARED)) == 3)
    assert frontend.serve(SHARED) == 3
    assert [output(frontend.client.wait(each)) for each in (first, second, third)] == [ANSWERED] * 3


def large_answers_reach_all(frontend: FrontendFixture) -> None:
    pendings = [asked(frontend, value={"do": "grow", "size": 100_000}) for _ in range(3)]
    assert frontend.serve(SHARED) == 1
    assert {len(output(frontend.client.wait(each))) for each in pendings} == {100_000}


def a_taken_back_one_is_told_so(frontend: FrontendFixture) -> None:
    asked(frontend)
    polled = later(frontend)
    watching = gevent.spawn(frontend.make_client().result, polled, 30.0)
    gevent.sleep(0.05)
    frontend.client.cancel(polled)
    reply = watching.get(timeout=30)
    assert reply is not None
    assert isinstance(error_of(partial(_raise, reply)), TaskCancelled)


def _raise(reply: Reply) -> None:
    from tasks.protocol.answers import error_of as as_error

    raise as_error(reply)


def models_that_share_nothing_are_as_before(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit("x", NOBODY) for _ in range(3)]
    wait_until(lambda: frontend.depth() == 3)
    assert frontend.serve() == 3
    assert [output(frontend.client.wait(each)) for each in pendings] == [ANSWERED] * 3
    assert frontend.waiting() == 0
