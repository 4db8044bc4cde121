"""Answers that are kept, and given to whoever asks the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import gevent

from config.settings import ModelSettings
from config.tiers import Tier
from tasks.errors import DeadlineExceeded, IdempotencyConflict, RateLimited
from tasks.protocol.caller import Caller
from tasks.protocol.results import Details, Reply, decode_details
from tests.gevent_scenarios.frontend_fixture import KEPT, NOBODY, Stage, all_of, error_of
from tests.waiting import wait_until

ANN = Caller("k1", "ann", Tier.PAID)


def computed(stage: Stage, value: Any, **options: Any) -> Reply:
    """Asked, and answered by the model."""
    pending = stage.submit(value, KEPT, **options)
    wait_until(lambda: stage.serve(KEPT), "somebody asks the model")
    return stage.client.wait(pending)


def kept(stage: Stage, value: Any, **options: Any) -> Reply:
    """Asked, and answered without a model."""
    reply = stage.client.wait(stage.submit(value, KEPT, **options))
    assert stage.depth(KEPT) == 0
    return reply


def about(reply: Reply) -> Details:
    return decode_details(reply.bunch)


def the_same_question_gets_the_same_bytes_under_an_id_of_its_own(stage: Stage) -> None:
    first = computed(stage, {"text": "é", "n": 1.50}, parameters=b'{"k":1}')
    again = kept(stage, {"n": 1.50, "text": "é"}, parameters=b'{"k":1}')
    assert bytes(again.result) == bytes(first.result)
    assert again.task_id != first.task_id
    assert (about(first).cached, about(again).cached) == (False, True)
    assert about(again).batch_id == about(first).batch_id
    assert (about(again).queue_ms, about(again).compute_ms, about(again).tier) == (0, 0, "paid")


def another_frontend_knows_it_too(stage: Stage) -> None:
    first = computed(stage, "x")
    other = stage.make_client()
    again = other.wait(other.submit(KEPT, Tier.FREE, b'"x"', timeout_s=30))
    assert bytes(again.result) == bytes(first.result)
    assert (about(again).cached, about(again).tier) == (True, "free")


def its_result_can_be_asked_for(stage: Stage) -> None:
    first = computed(stage, "x")
    task_id = stage.client.receipt(stage.submit("x", KEPT, waits=False, request_id="mine"))
    stored = stage.client.result(task_id)
    assert stored is not None
    assert (stored.status, bytes(stored.result), about(stored).cached) == ("SUCCESS", bytes(first.result), True)
    assert stage.client.task_of("mine") == task_id
    assert stage.client.cancel(task_id) == "SUCCESS"


def a_large_answer_comes_whole(stage: Stage) -> None:
    first = computed(stage, {"do": "grow", "size": 200_000})
    again = kept(stage, {"do": "grow", "size": 200_000})
    assert bytes(again.result) == bytes(first.result)
    assert about(again).cached


def what_differs_is_another_question(stage: Stage) -> None:
    computed(stage, "x")
    for other in ({"value": "y"}, {"value": "x", "parameters": b'{"k":1}'}, {"value": "x", "fresh": True}):
        assert not about(computed(stage, **other)).cached
    assert not about(stage.client.wait(_served(stage, stage.submit("x", NOBODY)))).cached


def _served(stage: Stage, pending: Any) -> Any:
    wait_until(stage.serve)
    return pending


def nobody_learns_what_others_have_asked(stage: Stage) -> None:
    computed(stage, "x", caller=ANN)
    assert not about(computed(stage, "x", caller=Caller("k2", "bob", Tier.PAID))).cached
    assert about(kept(stage, "x", caller=Caller("k3", "ann", Tier.FREE))).cached


def another_version_is_another_question(stage: Stage) -> None:
    computed(stage, "x")
    models = {KEPT: ModelSettings(name=KEPT, source="tests:Nothing", cache=True, version="2")}
    stage.settings = type(stage.settings)(redis_url=stage.url, models=models, default_model=KEPT)
    client = stage.make_client()
    pending = client.submit(KEPT, Tier.PAID, b'"x"', timeout_s=30)
    wait_until(lambda: stage.serve(KEPT))
    assert not about(client.wait(pending)).cached


def a_model_that_was_loaded_anew_is_asked_anew(stage: Stage) -> None:
    computed(stage, "x")
    stage.redis.incr("bunch:edition:kept")
    assert not about(computed(stage, "x")).cached
    assert about(kept(stage, "x")).cached


def failures_are_not_kept(stage: Stage) -> None:
    for wish in ({"do": "reject", "text": "no"}, {"do": "fail", "text": "broken"}):
        for _ in range(2):
            pending = stage.submit(wish, KEPT)
            wait_until(lambda: stage.serve(KEPT), "the model is asked each time")
            error_of(partial(stage.client.wait, pending))
    late = error_of(partial(stage.ask, "x", KEPT, 0.1))
    assert isinstance(late, DeadlineExceeded)
    # A caller is told a moment before its time is over.
    gevent.sleep(0.1)
    wait_until(lambda: stage.serve(KEPT))
    assert not stage.redis.keys("bunch:cached:*")


def it_counts_for_the_rate(stage: Stage) -> None:
    caller = Caller("k", "a", Tier.PAID, 60, 3)
    computed(stage, "x", caller=caller)
    for _ in range(2):
        assert about(kept(stage, "x", caller=caller)).cached
    assert isinstance(error_of(partial(stage.ask, "x", KEPT, caller=caller)), RateLimited)


def an_idempotency_key_of_a_kept_answer(stage: Stage) -> None:
    computed(stage, "x")
    first = kept(stage, "x", idempotency_key="k")
    assert kept(stage, "x", idempotency_key="k").task_id == first.task_id
    conflict = error_of(partial(stage.ask, "y", KEPT, idempotency_key="k"))
    assert isinstance(conflict, IdempotencyConflict)


def a_cache_that_is_broken_costs_a_computation(stage: Stage) -> None:
    computed(stage, "x")
    (key,) = stage.redis.keys("bunch:cached:*")
    stage.redis.delete(key)
    stage.redis.lpush(key, "not a string")
    assert not about(computed(stage, "x")).cached
    stage.redis.delete("bunch:kept")
    stage.redis.set("bunch:kept", "not a list")
    assert not about(computed(stage, "y")).cached
    stage.redis.set(key, "not an answer")
    assert not about(computed(stage, "x")).cached


def many_at_once(stage: Stage) -> None:
    computed(stage, "x")
    replies = all_of(partial(kept, stage, "x") for _ in range(600))
    assert len({each.task_id for each in replies}) == 600
    assert len({bytes(each.result) for each in replies}) == 1
    assert stage.client.router.size == 0
