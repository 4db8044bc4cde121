"""Messages that a worker of ours cannot run, or that others would not: each caller is told, under the id it asks by."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord

from tests.integration.celery_harness import PATIENCE_S, close_client, plain_client
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until

QUEUE = "bunch.echo.paid"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery")) as rig:
        yield rig


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def protocol1(name: str, **changes: Any) -> str:
    return json.dumps({"task": "bunch.infer", "id": name, "args": [name], "kwargs": {}, **changes})


RUN = {
    "no headers": lambda name: {"body": protocol1(name), "properties": {}},
    "headers are null": lambda name: {"body": protocol1(name), "headers": None, "properties": {}},
    "an empty table of PHP": lambda name: {"body": protocol1(name), "headers": [], "properties": []},
    "no properties": lambda name: {"body": protocol1(name), "content-type": None},
}
REFUSED = {
    "an unknown keyword": lambda name: {"body": protocol1(name, kwargs={"x": 1})},
    "keywords are null": lambda name: {"body": protocol1(name, kwargs=None), "headers": None},
    "another task": lambda name: {"body": protocol1(name, task="tasks.add")},
    "not JSON": lambda name: {"body": "a: b", "properties": {"correlation_id": name}},
    "an id in the properties alone": lambda name: {
        "body": "[[1], {}, {}]",
        "headers": {"task": "bunch.infer"},
        "properties": {"correlation_id": name},
    },
    "a header of another type": lambda name: {"body": "[[1], {}, {}]", "headers": {"id": name, "task": {}}},
}


@pytest.mark.parametrize("message", RUN.values(), ids=RUN.keys())
def test_what_kombu_would_run_is_run(rig: Rig, name: str, message: Any) -> None:
    rig.redis.lpush(QUEUE, json.dumps({"content-type": "application/json", **message(name)}))
    assert rig.client.AsyncResult(name).get(timeout=PATIENCE_S) == name


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_run_fails_under_its_own_id(rig: Rig, name: str, message: Any) -> None:
    rig.redis.lpush(QUEUE, json.dumps({"content-type": "application/json", **message(name)}))
    result = rig.client.AsyncResult(name)
    with pytest.raises(Exception, match=r"."):
        result.get(timeout=PATIENCE_S)
    assert result.state == "FAILURE"


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize(
    "sent",
    [{"args": [float("nan")]}, {"args": ["\ud800"]}, {"args": [1], "serializer": "yaml"}, {"args": [1, 2, 3]}],
    ids=["NaN", "a lone surrogate", "yaml", "three arguments"],
)
def test_what_celery_sends_and_json_cannot_say_fails(rig: Rig, protocol: int, sent: dict[str, Any]) -> None:
    client = plain_client(rig.url, task_protocol=protocol)
    try:
        result = client.send_task("bunch.infer", queue=QUEUE, **sent)
        with pytest.raises(Exception, match=r"."):
            result.get(timeout=PATIENCE_S)
        assert result.state == "FAILURE"
    finally:
        close_client(client)


def test_who_waits_behind_a_refused_task_hears_of_it(rig: Rig, name: str) -> None:
    """Its error callback, the next step of its chain, the body of its chord: none of them waits for ever."""
    refused = rig.client.signature("bunch.infer", args=[1], kwargs={"unknown": 1}, options={"queue": QUEUE})
    one = refused.clone().apply_async(link_error=rig.task("failed", name))
    wait_until(lambda: rig.noted(name) == [[one.id]], "the errback")
    last = chain(refused.clone(), rig.task("note", name), app=rig.client).apply_async()
    with pytest.raises(Exception, match="unknown"):
        last.get(timeout=PATIENCE_S)
    body = chord([rig.infer(1), refused.clone()], app=rig.client)(rig.task("total", name))
    wait_until(lambda: body.state == "FAILURE", "the chord ends")
