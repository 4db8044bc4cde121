"""A Celery program that has never heard of Bunch: it sends, gets, and reads what Bunch sends."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError
from redis import Redis

from batching.claim.loop_state import LOOK_EVERY_S
from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import Stack
from tests.waiting import wait_until

PATIENCE_S = 160
PAID = "bunch.moody.paid"


@pytest.fixture(scope="module")
def celery(stack: Stack) -> Iterator[Celery]:
    app = Celery("vanilla", broker=stack.redis_url, backend=stack.redis_url, set_as_current=False)
    app.conf.broker_connection_retry_on_startup = True
    yield app
    app.backend.result_consumer.stop()
    app.close()


def test_send_task_and_get(celery: Celery) -> None:
    for queue in ("bunch.echo.enterprise", "bunch.echo.paid", "bunch.echo.free"):
        result = celery.send_task("bunch.infer", ["hello"], {"parameters": {}}, queue=queue)
        assert result.get(timeout=PATIENCE_S) == "hello"
        assert result.successful()
    assert celery.send_task("bunch.infer", [{"é": [1.5, None]}], queue="bunch.echo.paid").get(timeout=PATIENCE_S) == {
        "é": [1.5, None]
    }
    assert (
        celery.send_task("bunch.infer", kwargs={"input": "é"}, queue="bunch.shout.paid").get(timeout=PATIENCE_S) == "É"
    )


def test_many_at_once_are_batched_and_each_gets_its_own(celery: Celery) -> None:
    infer = celery.signature("bunch.infer", queue=PAID)
    outputs = group(infer.clone([n]) for n in range(200)).apply_async().get(timeout=PATIENCE_S)
    assert [each["echo"] for each in outputs] == list(range(200))
    assert max(each["batch"] for each in outputs) > 4


def test_it_is_picked_up_without_a_bell(celery: Celery) -> None:
    """Its client rings no bell as ours do, so somebody must look: within 100 ms, and a slow machine may take longer."""
    celery.send_task("bunch.infer", ["warm"], queue="bunch.echo.paid").get(timeout=PATIENCE_S)
    took = []
    for n in range(7):
        began = time.monotonic()
        celery.send_task("bunch.infer", [n], queue="bunch.echo.paid").get(timeout=PATIENCE_S)
        took.append(time.monotonic() - began)
        time.sleep(0.03)
    assert LOOK_EVERY_S < 0.1
    assert min(took) < 1.0, took


def test_a_failure_is_raised(celery: Celery) -> None:
    for wish, words in (({"reject": "not this"}, "not this"), ({"raise": "unwell"}, "unwell")):
        result = celery.send_task("bunch.infer", [wish], queue=PAID)
        with pytest.raises(Exception, match=words):
            result.get(timeout=PATIENCE_S)
        assert result.failed()


def test_its_expiry_and_its_revocation_count(celery: Celery, store: Redis, api: Api, gate: Gate) -> None:
    gate.occupy()
    expired = celery.send_task("bunch.infer", ["late"], queue=PAID, expires=0.1)
    revoked = celery.send_task("bunch.infer", ["no more"], queue=PAID)
    celery.control.revoke(revoked.id)
    # Before a worker comes to it, which could be sooner than it hears of the revocation.
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=PATIENCE_S)
    time.sleep(0.2)
    gate.open()

    with pytest.raises(Exception, match=r"(?i)time|deadline|expired"):
        expired.get(timeout=PATIENCE_S)
    assert api.infer("after them", "moody").json["output"]["batch"] == 1


def test_its_results_are_seen_over_http(celery: Celery, api: Api) -> None:
    result = celery.send_task("bunch.infer", ["hello"], queue="bunch.echo.paid")
    result.get(timeout=PATIENCE_S)
    seen = api.result(result.id)
    assert seen.pop("completed_at")
    assert seen == {"task_id": result.id, "status": "SUCCESS", "output": "hello"}


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
def test_what_bunch_queues_is_a_celery_message(celery: Celery, store: Redis, api: Api, gate: Gate) -> None:
    gate.occupy()
    task_id = api.later({"for": "anybody"}, "moody", parameters={"p": 1})
    with celery.connection_for_read() as connection, connection.SimpleQueue(PAID) as queue:
        message = queue.get(timeout=PATIENCE_S)
        message.ack()
    gate.open()

    args, kwargs, embed = message.payload
    assert (args, kwargs) == ([{"for": "anybody"}], {"parameters": {"p": 1}})
    assert embed == {}
    assert (message.headers["task"], message.headers["id"]) == ("bunch.infer", task_id)
    # What a worker of its own would answer, Bunch's caller gets.
    celery.backend.store_result(task_id, "answered elsewhere", "SUCCESS")
    seen = api.outcome(task_id)
    assert seen.pop("completed_at")
    assert seen == {
        "task_id": task_id,
        "status": "SUCCESS",
        "output": "answered elsewhere",
    }


RUBBISH = {
    "no JSON": b"\x00 rubbish",
    "no message": b"{}",
    "no body": b'{"headers": {"task": "bunch.infer", "id": "1"}, "properties": {}}',
    "a list": b"[1, 2]",
}


@pytest.mark.parametrize("message", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_in_the_queue_harms_nobody(store: Redis, api: Api, gate: Gate, message: bytes) -> None:
    neighbours_of(message, store, api, gate)


@pytest.mark.parametrize("levels", [300, 985, 1000, 5000])
def test_nesting_without_end_in_the_queue_harms_nobody(store: Redis, api: Api, gate: Gate, levels: int) -> None:
    task_id = str(uuid.uuid4())
    nothing = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
    message = {
        "body": f"[[{'[' * levels}{']' * levels}], {{}}, {nothing}]",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "bunch.infer", "id": task_id},
        "properties": {"delivery_tag": task_id, "correlation_id": task_id, "body_encoding": "utf-8"},
    }
    neighbours_of(json.dumps(message).encode(), store, api, gate)


def neighbours_of(message: bytes, store: Redis, api: Api, gate: Gate) -> None:
    """Three requests that are claimed together with `message` are answered."""
    gate.occupy()
    store.lpush(PAID, message)
    neighbours = [api.soon(n, "moody") for n in range(3)]
    wait_until(lambda: store.llen(PAID) == 4, what="they wait together")
    gate.open()
    answers = [each.result() for each in neighbours]
    assert [answer.status for answer in answers] == [200] * 3
    assert len({answer.json["metadata"]["batch_id"] for answer in answers}) == 1
