"""Callers who give an Idempotency-Key, and use it again."""

from __future__ import annotations

from functools import partial
from typing import Any

import gevent

from config.tiers import Tier
from tasks.errors import DeadlineExceeded, IdempotencyConflict, InputRejected, RateLimited, ShuttingDown
from tasks.protocol.caller import Caller
from tests.gevent_scenarios.frontend_fixture import NOBODY, SMALL, Stage, all_of, error_of, output
from tests.waiting import wait_until

KEY = "order 66"


def twins(stage: Stage, value: Any = "x", **options: Any) -> list[Any]:
    """Two waiting requests with the same key, from two frontends."""
    other = stage.make_client()
    options = {"idempotency_key": KEY, **options}
    first = stage.submit(value, NOBODY, **options)
    wait_until(stage.depth)
    second = other.submit(NOBODY, Tier.PAID, b'"%b"' % value.encode(), timeout_s=30, **options)
    return [partial(stage.client.wait, first), partial(other.wait, second)]


def the_second_gets_the_outcome_of_the_first(stage: Stage) -> None:
    first = stage.client.wait(stage.submit("x", idempotency_key=KEY))
    again = stage.client.wait(stage.submit("x", idempotency_key=KEY))
    assert (again.task_id, bytes(again.result), bytes(again.bunch)) == (
        first.task_id, bytes(first.result), bytes(first.bunch),
    )  # fmt: skip
    assert stage.client.receipt(stage.submit("x", idempotency_key=KEY, waits=False)) == first.task_id


def while_the_first_is_under_way_the_second_waits_with_it(stage: Stage) -> None:
    waiting = twins(stage)
    assert stage.depth() == 1
    assert stage.serve() == 1
    first, second = all_of(waiting)
    assert first.task_id == second.task_id
    assert output(first) == output(second) == {"echo": "x"}


def of_many_at_once_one_is_run(stage: Stage) -> None:
    pendings = [stage.submit("x", NOBODY, idempotency_key=KEY) for _ in range(50)]
    wait_until(stage.depth)
    assert stage.serve() == 1
    replies = all_of(partial(stage.client.wait, each) for each in pendings)
    assert len({each.task_id for each in replies}) == 1


def equal_values_are_the_same_however_they_are_spelt(stage: Stage) -> None:
    first = stage.client.wait(stage.submit({"a": 1, "b": 2}, parameters=b'{"x":1,"y":[]}', idempotency_key=KEY))
    again = stage.client.wait(stage.submit({"b": 2, "a": 1}, parameters=b'{"y":[],"x":1}', idempotency_key=KEY))
    assert first.task_id == again.task_id


def another_question_is_refused(stage: Stage) -> None:
    stage.ask("x", idempotency_key=KEY)
    others: tuple[dict[str, Any], ...] = (
        {"value": "y"},
        {"value": "x", "parameters": b'{"k":1}'},
        {"value": "x", "model": NOBODY},
    )

    def ask(other: dict[str, Any]) -> None:
        stage.client.wait(stage.submit(**other, idempotency_key=KEY))

    for other in others:
        error = error_of(partial(ask, other))
        assert isinstance(error, IdempotencyConflict)
    assert stage.depth() == 0


def keys_belong_to_their_owners(stage: Stage) -> None:
    ann, bob = Caller("k1", "ann", Tier.PAID), Caller("k2", "bob", Tier.PAID)
    first = stage.client.wait(stage.submit("x", idempotency_key=KEY, caller=ann))
    other = stage.client.wait(stage.submit("y", idempotency_key=KEY, caller=bob))
    assert first.task_id != other.task_id
    anns_other = Caller("k3", "ann", Tier.FREE)
    assert stage.client.wait(stage.submit("x", idempotency_key=KEY, caller=anns_other)).task_id == first.task_id


def a_refusal_of_the_model_is_an_outcome(stage: Stage) -> None:
    ask = partial(stage.ask, {"do": "reject", "text": "no"}, NOBODY, idempotency_key=KEY)
    waiting = stage.submit({"do": "reject", "text": "no"}, NOBODY, idempotency_key=KEY)
    wait_until(stage.serve)
    assert isinstance(error_of(partial(stage.client.wait, waiting)), InputRejected)
    assert isinstance(error_of(ask), InputRejected)
    assert stage.depth() == 0


def what_was_never_run_may_be_asked_for_again(stage: Stage) -> None:
    late = error_of(partial(stage.ask, "x", NOBODY, 0.2, idempotency_key=KEY))
    assert isinstance(late, DeadlineExceeded)
    # A caller is told a moment before its time is over.
    gevent.sleep(0.1)
    # The first is found to be too late; then the second is the first.
    wait_until(stage.serve)
    waiting = stage.submit("x", NOBODY, idempotency_key=KEY)
    wait_until(stage.depth)
    assert stage.serve() == 1
    assert output(stage.client.wait(waiting)) == {"echo": "x"}
    taken_back = stage.client.receipt(stage.submit("y", NOBODY, idempotency_key="other", waits=False))
    assert stage.client.cancel(taken_back) == "PENDING"
    assert stage.client.receipt(stage.submit("y", NOBODY, idempotency_key="other", waits=False)) != taken_back


def it_goes_on_when_its_caller_has_gone(stage: Stage) -> None:
    pending = stage.submit("x", NOBODY, idempotency_key=KEY, hung_up=lambda: True)
    wait_until(stage.depth)
    stage.client.router.forget(pending)
    assert stage.serve() == 1
    assert stage.ask("x", NOBODY, idempotency_key=KEY) == {"echo": "x"}


def a_frontend_that_leaves_does_not_take_it_back(stage: Stage) -> None:
    leaving = stage.make_client()
    kept = leaving.submit(NOBODY, Tier.PAID, b'"x"', timeout_s=30, idempotency_key=KEY)
    other = leaving.submit(NOBODY, Tier.PAID, b'"y"', timeout_s=30)
    wait_until(lambda: stage.depth() == 2)
    leaving.router.refuse()
    for each in (kept, other):
        assert isinstance(error_of(partial(leaving.wait, each)), ShuttingDown)
    wait_until(lambda: stage.redis.zcard("bunch:cancelled"))
    # Asked again elsewhere, before a worker had a look at it.
    again = stage.submit("x", NOBODY, idempotency_key=KEY)
    wait_until(lambda: stage.client.outbox.flushes)
    assert stage.serve() == 2
    reply = stage.client.wait(again)
    assert (reply.task_id, output(reply)) == (kept.task_id, {"echo": "x"})


def who_was_refused_at_the_door_has_used_no_key(stage: Stage) -> None:
    for number in range(3):
        stage.client.receipt(stage.submit(number, SMALL, waits=False))
    refused = error_of(partial(stage.ask, "x", SMALL, idempotency_key=KEY))
    assert refused.code == "SERVICE_OVERLOADED"
    assert not stage.redis.keys("bunch:idempotency:*")
    assert stage.ask("y", idempotency_key=KEY) == {"echo": "y"}


def asking_again_counts_for_the_rate(stage: Stage) -> None:
    caller = Caller("k", "a", Tier.PAID, 60, 3)
    for _ in range(3):
        stage.ask("x", idempotency_key=KEY, caller=caller)
    error = error_of(partial(stage.ask, "x", idempotency_key=KEY, caller=caller))
    assert isinstance(error, RateLimited)


def nothing_is_waited_for_in_the_end(stage: Stage) -> None:
    stage.ask("x", idempotency_key=KEY)
    stage.ask("x", idempotency_key=KEY)
    assert stage.client.router.size == 0
