"""Cached answers, and the requests that get them."""

from __future__ import annotations

from functools import partial
from typing import Any

from config.settings import ModelSettings
from config.tiers import Tier
from tasks.errors import DeadlineExceeded, IdempotencyConflict, RateLimited
from tasks.protocol.caller import Caller
from tasks.protocol.results import Details, Reply, decode_details
from tests.gevent_scenarios.frontend_fixture import ANN, KEPT, NOBODY, FrontendFixture, all_of, asking, error_of
from tests.shards import redis_settings
from tests.waiting import wait_until


def computed(frontend: FrontendFixture, value: Any, **options: Any) -> Reply:
    """Send a request and check that the model answered it."""
    pending = frontend.submit(value, KEPT, **options)
    wait_until(lambda: frontend.serve(KEPT), "somebody asks the model")
    return frontend.client.wait(pending)


def kept(frontend: FrontendFixture, value: Any, **options: Any) -> Reply:
    """Send a request and check that the cache answered it."""
    reply = frontend.client.wait(frontend.submit(value, KEPT, **options))
    assert frontend.depth(KEPT) == 0
    return reply


def about(reply: Reply) -> Details:
    return decode_details(reply.bunch)


def the_same_question_gets_the_same_bytes_under_an_id_of_its_own(frontend: FrontendFixture) -> None:
    first = computed(frontend, {"text": "é", "n": 1.50}, parameters=b'{"k":1}')
    again = kept(frontend, {"n": 1.50, "text": "é"}, parameters=b'{"k":1}')
    assert bytes(again.result) == bytes(first.result)
    assert again.task_id != first.task_id
    assert (about(first).cached, about(again).cached) == (False, True)
    assert about(again).batch_id == about(first).batch_id
    assert (about(again).queue_ms, about(again).compute_ms, about(again).tier) == (0, 0, "paid")


def another_frontend_knows_it_too(frontend: FrontendFixture) -> None:
    first = computed(frontend, "x")
    other = frontend.make_client()
    again = other.wait(other.submit(asking(KEPT, b'"x"', Tier.FREE)))
    assert bytes(again.result) == bytes(first.result)
    assert (about(again).cached, about(again).tier) == (True, "free")


def its_result_can_be_asked_for(frontend: FrontendFixture) -> None:
    first = computed(frontend, "x")
    task_id = frontend.client.receipt(frontend.submit("x", KEPT, waits=False, request_id="mine"))
    stored = frontend.client.result(task_id)
    assert stored is not None
    assert (stored.status, bytes(stored.result), about(stored).cached) == ("SUCCESS", bytes(first.result), True)
    assert frontend.client.task_of("mine") == task_id
    assert frontend.client.cancel(task_id) == "SUCCESS"


def a_large_answer_comes_whole(frontend: FrontendFixture) -> None:
    first = computed(frontend, {"do": "grow", "size": 200_000})
    again = kept(frontend, {"do": "grow", "size": 200_000})
    assert bytes(again.result) == bytes(first.result)
    assert about(again).cached


def what_differs_is_another_question(frontend: FrontendFixture) -> None:
    computed(frontend, "x")
    for other in ({"value": "y"}, {"value": "x", "parameters": b'{"k":1}'}, {"value": "x", "fresh": True}):
        assert not about(computed(frontend, **other)).cached
    assert not about(frontend.client.wait(_served(frontend, frontend.submit("x", NOBODY)))).cached


def _served(frontend: FrontendFixture, pending: Any) -> Any:
    wait_until(frontend.serve)
    return pending


def nobody_learns_what_others_have_asked(frontend: FrontendFixture) -> None:
    computed(frontend, "x", caller=ANN)
    assert not about(computed(frontend, "x", caller=Caller("k2", "bob", Tier.PAID))).cached
    assert about(kept(frontend, "x", caller=Caller("k3", "ann", Tier.FREE))).cached


def another_version_is_another_question(frontend: FrontendFixture) -> None:
    computed(frontend, "x")
    models = {KEPT: ModelSettings(name=KEPT, source="tests:Nothing", cache=True, version="2")}
    frontend.settings = type(frontend.settings)(**redis_settings(frontend.url), models=models, default_model=KEPT)
    client = frontend.make_client()
    pending = client.submit(asking(KEPT, b'"x"'))
    wait_until(lambda: frontend.serve(KEPT))
    assert not about(client.wait(pending)).cached


def a_model_that_was_loaded_anew_is_asked_anew(frontend: FrontendFixture) -> None:
    computed(frontend, "x")
    for each in frontend.keys:
        frontend.redis.incr(each.edition(KEPT))
    assert not about(computed(frontend, "x")).cached
    assert about(kept(frontend, "x")).cached


def failures_are_not_kept(frontend: FrontendFixture) -> None:
    for wish in ({"do": "reject", "text": "no"}, {"do": "fail", "text": "broken"}):
        for _ in range(2):
            pending = frontend.submit(wish, KEPT)
            wait_until(lambda: frontend.serve(KEPT), "the model is asked each time")
            error_of(partial(frontend.client.wait, pending))
    pending = frontend.submit("x", KEPT, 1.0)
    wait_until(lambda: frontend.depth(KEPT) == 1)
    late = frontend.next_message(KEPT, Tier.PAID)
    assert isinstance(error_of(partial(frontend.client.wait, pending)), DeadlineExceeded)
    frontend.outlive(late)
    assert frontend.serve(KEPT) == 1
    assert not frontend.redis.keys("bunch:cached:*")


def it_counts_for_the_rate(frontend: FrontendFixture) -> None:
    caller = Caller("k", "a", Tier.PAID, 1, 3)
    computed(frontend, "x", caller=caller)
    for _ in range(2):
        assert about(kept(frontend, "x", caller=caller)).cached
    assert isinstance(error_of(partial(frontend.ask, "x", KEPT, caller=caller)), RateLimited)


def an_idempotency_key_of_a_kept_answer(frontend: FrontendFixture) -> None:
    # Without an owner, a key may be in another shard than the answer.
    computed(frontend, "x", caller=ANN)
    first = kept(frontend, "x", idempotency_key="k", caller=ANN)
    assert kept(frontend, "x", idempotency_key="k", caller=ANN).task_id == first.task_id
    conflict = error_of(partial(frontend.ask, "y", KEPT, idempotency_key="k", caller=ANN))
    assert isinstance(conflict, IdempotencyConflict)


def a_cache_that_is_broken_costs_a_computation(frontend: FrontendFixture) -> None:
    computed(frontend, "x")
    (key,) = frontend.redis.keys("bunch:cached*:*")
    frontend.redis.delete(key)
    frontend.redis.lpush(key, "not a string")
    assert not about(computed(frontend, "x")).cached
    for each in frontend.keys:
        frontend.redis.delete(each.kept())
        frontend.redis.set(each.kept(), "not a list")
    assert not about(computed(frontend, "y")).cached
    frontend.redis.set(key, "not an answer")
    assert not about(computed(frontend, "x")).cached


def many_at_once(frontend: FrontendFixture) -> None:
    computed(frontend, "x")
    replies = all_of(partial(kept, frontend, "x") for _ in range(600))
    assert len({each.task_id for each in replies}) == 600
    assert len({bytes(each.result) for each in replies}) == 1
    assert frontend.client.waiting == 0
