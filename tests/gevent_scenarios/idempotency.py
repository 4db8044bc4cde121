"""Callers that reuse an Idempotency-Key."""

from __future__ import annotations

from functools import partial
from typing import Any

from config.tiers import Tier
from tasks.errors import DeadlineExceeded, IdempotencyConflict, InputRejected, RateLimited, ShuttingDown
from tasks.protocol.caller import Caller
from tests.gevent_scenarios.frontend_fixture import NOBODY, SMALL, FrontendFixture, all_of, asking, error_of, output
from tests.waiting import wait_until

KEY = "order 66"


def twins(frontend: FrontendFixture, value: Any = "x", **options: Any) -> list[Any]:
    """Two waiting requests with the same key, from two frontends."""
    other = frontend.make_client()
    options = {"idempotency_key": KEY, **options}
    first = frontend.submit(value, NOBODY, **options)
    wait_until(frontend.depth)
    second = other.submit(asking(NOBODY, b'"%b"' % value.encode(), **options))
    return [partial(frontend.client.wait, first), partial(other.wait, second)]


def the_second_gets_the_outcome_of_the_first(frontend: FrontendFixture) -> None:
    first = frontend.client.wait(frontend.submit("x", idempotency_key=KEY))
    again = frontend.client.wait(frontend.submit("x", idempotency_key=KEY))
    assert (again.task_id, bytes(again.result), bytes(again.bunch)) == (
        first.task_id, bytes(first.result), bytes(first.bunch),
    )  # fmt: skip
    assert frontend.client.receipt(frontend.submit("x", idempotency_key=KEY, waits=False)) == first.task_id


def while_the_first_is_under_way_the_second_waits_with_it(frontend: FrontendFixture) -> None:
    waiting = twins(frontend)
    assert frontend.depth() == 1
    assert frontend.serve() == 1
    first, second = all_of(waiting)
    assert first.task_id == second.task_id
    assert output(first) == output(second) == {"echo": "x"}


def of_many_at_once_one_is_run(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit("x", NOBODY, idempotency_key=KEY) for _ in range(50)]
    wait_until(frontend.depth)
    assert frontend.serve() == 1
    replies = all_of(partial(frontend.client.wait, each) for each in pendings)
    assert len({each.task_id for each in replies}) == 1


def equal_values_are_the_same_however_they_are_spelt(frontend: FrontendFixture) -> None:
    first = frontend.client.wait(frontend.submit({"a": 1, "b": 2}, parameters=b'{"x":1,"y":[]}', idempotency_key=KEY))
    again = frontend.client.wait(frontend.submit({"b": 2, "a": 1}, parameters=b'{"y":[],"x":1}', idempotency_key=KEY))
    assert first.task_id == again.task_id


def another_question_is_refused(frontend: FrontendFixture) -> None:
    frontend.ask("x", idempotency_key=KEY)
    others: tuple[dict[str, Any], ...] = (
        {"value": "y"},
        {"value": "x", "parameters": b'{"k":1}'},
        {"value": "x", "model": NOBODY},
    )

    def ask(other: dict[str, Any]) -> None:
        frontend.client.wait(frontend.submit(**other, idempotency_key=KEY))

    for other in others:
        error = error_of(partial(ask, other))
        assert isinstance(error, IdempotencyConflict)
    assert frontend.depth() == 0


def keys_belong_to_their_owners(frontend: FrontendFixture) -> None:
    ann, bob = Caller("k1", "ann", Tier.PAID), Caller("k2", "bob", Tier.PAID)
    first = frontend.client.wait(frontend.submit("x", idempotency_key=KEY, caller=ann))
    other = frontend.client.wait(frontend.submit("y", idempotency_key=KEY, caller=bob))
    assert first.task_id != other.task_id
    anns_other = Caller("k3", "ann", Tier.FREE)
    assert frontend.client.wait(frontend.submit("x", idempotency_key=KEY, caller=anns_other)).task_id == first.task_id


def a_refusal_of_the_model_is_an_outcome(frontend: FrontendFixture) -> None:
    ask = partial(frontend.ask, {"do": "reject", "text": "no"}, NOBODY, idempotency_key=KEY)
    waiting = frontend.submit({"do": "reject", "text": "no"}, NOBODY, idempotency_key=KEY)
    wait_until(frontend.serve)
    assert isinstance(error_of(partial(frontend.client.wait, waiting)), InputRejected)
    assert isinstance(error_of(ask), InputRejected)
    assert frontend.depth() == 0


def what_was_never_run_may_be_asked_for_again(frontend: FrontendFixture) -> None:
    pending = frontend.submit("x", NOBODY, 1.0, idempotency_key=KEY)
    wait_until(frontend.depth)
    late = frontend.next_message(NOBODY, Tier.PAID)
    assert isinstance(error_of(partial(frontend.client.wait, pending)), DeadlineExceeded)
    frontend.outlive(late)
    # The first is found to be too late; then the second is the first.
    assert frontend.serve() == 1
    waiting = frontend.submit("x", NOBODY, idempotency_key=KEY)
    wait_until(frontend.depth)
    assert frontend.serve() == 1
    assert output(frontend.client.wait(waiting)) == {"echo": "x"}
    taken_back = frontend.client.receipt(frontend.submit("y", NOBODY, idempotency_key="other", waits=False))
    assert frontend.client.cancel(taken_back) == "PENDING"
    assert frontend.client.receipt(frontend.submit("y", NOBODY, idempotency_key="other", waits=False)) != taken_back


def it_goes_on_when_its_caller_has_gone(frontend: FrontendFixture) -> None:
    pending = frontend.submit("x", NOBODY, idempotency_key=KEY, hung_up=lambda: True)
    wait_until(frontend.depth)
    frontend.client.drop(pending)
    assert frontend.serve() == 1
    assert frontend.ask("x", NOBODY, idempotency_key=KEY) == {"echo": "x"}


def a_frontend_that_leaves_does_not_take_it_back(frontend: FrontendFixture) -> None:
    leaving = frontend.make_client()
    kept = leaving.submit(asking(NOBODY, b'"x"', idempotency_key=KEY))
    other = leaving.submit(asking(NOBODY, b'"y"'))
    wait_until(lambda: frontend.depth() == 2)
    leaving.refuse()
    for each in (kept, other):
        assert isinstance(error_of(partial(leaving.wait, each)), ShuttingDown)
    wait_until(frontend.cancelled)
    # Asked again elsewhere, before a worker had a look at it.
    again = frontend.submit("x", NOBODY, idempotency_key=KEY)
    wait_until(frontend.flushes)
    assert frontend.serve() == 2
    reply = frontend.client.wait(again)
    assert (reply.task_id, output(reply)) == (kept.task_id, {"echo": "x"})


def who_was_refused_at_the_door_has_used_no_key(frontend: FrontendFixture) -> None:
    for number in range(3):
        frontend.client.receipt(frontend.submit(number, SMALL, waits=False))
    refused = error_of(partial(frontend.ask, "x", SMALL, idempotency_key=KEY))
    assert refused.code == "SERVICE_OVERLOADED"
    assert not frontend.redis.keys("bunch:idempotency:*")
    assert frontend.ask("y", idempotency_key=KEY) == {"echo": "y"}


def asking_again_counts_for_the_rate(frontend: FrontendFixture) -> None:
    caller = Caller("k", "a", Tier.PAID, 1, 3)
    for _ in range(3):
        frontend.ask("x", idempotency_key=KEY, caller=caller)
    error = error_of(partial(frontend.ask, "x", idempotency_key=KEY, caller=caller))
    assert isinstance(error, RateLimited)


def nothing_is_waited_for_in_the_end(frontend: FrontendFixture) -> None:
    frontend.ask("x", idempotency_key=KEY)
    frontend.ask("x", idempotency_key=KEY)
    assert frontend.client.waiting == 0
