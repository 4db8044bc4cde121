"""A waiting request is taken back: its caller on an open connection is told then, not when a worker comes to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from batching.fast_header import read_fast_header
from config.keys import Shard
from config.tiers import Tier
from tests.e2e.client import Answer, Api
from tests.e2e.gate import Gate
from tests.e2e.stack import Stack
from tests.integration.celery_harness import close_client, plain_client
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def celery(stack: Stack) -> Iterator[Celery]:
    app = plain_client(stack.redis_url)
    yield app
    close_client(app)


QUEUE = Shard().queue("moody", Tier.PAID)


def waiting(store: Redis) -> list[str]:
    """Task ids in the queue of `moody`, whether anybody can ask for them or not."""
    stamps = (read_fast_header(each) for each in store.lrange(QUEUE, 0, -1))
    return [stamp.task_id for stamp in stamps if stamp]


def take_back(way: str, task_id: str, api: Api, celery: Celery) -> None:
    if way == "DELETE":
        assert api.call("DELETE", f"/v1/result/{task_id}").status == 200
    elif way == "revoke":
        celery.control.revoke(task_id)
    else:
        celery.control.terminate([task_id])


@pytest.mark.parametrize(
    ("way", "named"),
    [("DELETE", True), ("revoke", True), ("revoke", False), ("terminate", True)],
    ids=["DELETE", "revoke", "revoke of one without a name", "terminate"],
)
def test_a_caller_who_waits_hears_of_it_at_once(
    api: Api, gate: Gate, store: Redis, celery: Celery, way: str, named: bool
) -> None:
    gate.occupy()
    name = uuid.uuid4().hex
    headers = {"X_Request_Id": name} if named else {}
    body = {"input": name, "model": "moody"}
    caller: Future[Answer] = api.aside("/v1/inference", body, **headers)
    wait_until(lambda: len(waiting(store)) == 1, "it is queued")
    (task_id,) = waiting(store)
    began = time.monotonic()
    take_back(way, task_id, api, celery)
    answer = caller.result()
    told_s = time.monotonic() - began
    # The model is busy all the while: without being told the caller would have its deadline's answer.
    assert (answer.status, answer.json["error"]) == (409, "CANCELLED")
    assert told_s < 30
    gate.open()
    # The batch that it would have been in has gone by without it.
    assert api.infer("after it", "moody").json["output"]["batch"] == 1


def test_what_is_in_the_model_is_left_alone(api: Api, gate: Gate, celery: Celery, store: Redis) -> None:
    gate.occupy()
    running: Any = celery.control.inspect(timeout=PATIENCE_S, limit=3).active()
    ids = [each["id"] for requests in running.values() for each in requests]
    assert ids
    celery.control.revoke(ids)
    time.sleep(0.5)
    gate.open()
    assert api.infer("after it", "moody").status == 200
