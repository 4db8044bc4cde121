"""A client of the queue on a fleet with owners: what it says of others is not believed, what is theirs stays so."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from redis import Redis

from batching.fast_header import HEAD
from config.keys import RESULT_PREFIX, Shard
from config.secrets.message_keys import message_keys
from config.settings import Settings
from config.tiers import Tier
from tasks.client.dedup import DedupIdentity
from tasks.client.submission import Submission
from tasks.protocol.caller import Caller
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.seal import Seal
from tests.fakes.messages import celery_message
from tests.fakes.store import epoch_ms
from tests.integration.celery_harness import (
    PATIENCE_S,
    bunch_worker,
    close_client,
    infer,
    plain_client,
    wait_for_models,
)
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

SECRET = "what the frontends know"
QUEUE = "bunch.echo.paid"
MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\ncache = true\n'
KEYS = Shard()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    folder = tmp_path_factory.mktemp("forged")
    worker = bunch_worker(folder, server, MODEL, auth="keys", message_secret=SECRET)
    try:
        worker.start()
        with server.client() as redis:
            wait_for_models(redis, "echo")
        yield server
    finally:
        worker.stop()
        server.stop()


@pytest.fixture
def redis(valkey: PrivateValkey) -> Iterator[Redis]:
    with valkey.client() as client:
        yield client


@pytest.fixture
def client(valkey: PrivateValkey) -> Iterator[Celery]:
    app = plain_client(valkey.url)
    yield app
    close_client(app)


def from_frontend(task_id: str, question: str = "", *, secret: str = SECRET, value: str = "hers") -> bytes:
    """A request of alice's, as `submit.lua` queues it."""
    seal = Seal(message_keys(Settings(models={}, message_secret=secret))) if secret else None
    submission = Submission("echo", Caller("", "alice", Tier.PAID), json.dumps(value).encode(), 60.0)
    out = Outgoing(
        task_id,
        submission,
        QUEUE,
        60_000,
        60_000,
        60_000,
        once=DedupIdentity(question=question, keep_ms=60_000) if question else None,
    )
    now = epoch_ms()
    times = f"{now + 60_000:013d};{now + 60_000:013d};{now:013d};00;0;".encode()
    return HEAD + times + MessageWriter("bunch:reply:hers", seal).rest(out, now / 1000)


def stored(redis: Redis, task_id: str) -> dict[str, Any]:
    wait_until(lambda: redis.exists(RESULT_PREFIX + task_id), "there is a result")
    found: dict[str, Any] = json.loads(redis.get(RESULT_PREFIX + task_id) or b"")
    return found


def hers(redis: Redis) -> str:
    """A finished request of alice's."""
    task_id = str(uuid.uuid4())
    redis.lpush(QUEUE, from_frontend(task_id))
    assert stored(redis, task_id)["result"] == "hers"
    return task_id


def worked_off(client: Celery) -> None:
    """Whatever was sent before is done with; two, since one may be in the batch of what it follows."""
    for n in range(2):
        assert infer(client, n).apply_async().get(timeout=PATIENCE_S) == n


def test_a_result_that_has_an_owner_is_not_written_over(redis: Redis, client: Celery) -> None:
    task_id = hers(redis)
    before = redis.get(RESULT_PREFIX + task_id)
    for sent in ({"args": ["mine"]}, {"args": ["mine", {}, "refused"]}, {"args": ["mine"], "expires": -5}):
        client.send_task("bunch.infer", task_id=task_id, queue=QUEUE, **sent)
    redis.lpush(
        QUEUE, from_frontend(task_id, secret="", value="mine"), from_frontend(task_id, secret="guessed, but not right")
    )
    worked_off(client)
    assert redis.get(RESULT_PREFIX + task_id) == before


def test_nor_is_the_state_of_one_that_waits(redis: Redis, client: Celery) -> None:
    task_id = str(uuid.uuid4())
    pending = b'{"status":"PENDING","result":null,"traceback":null,"children":[],"date_done":null,"task_id":"%s"}'
    redis.set(RESULT_PREFIX + task_id, pending % task_id.encode(), ex=60)
    client.send_task("bunch.infer", ["mine"], task_id=task_id, queue=QUEUE)
    worked_off(client)
    assert stored(redis, task_id)["status"] == "PENDING"


def test_nor_by_the_later_steps_of_a_chain_that_fails(redis: Redis, client: Celery) -> None:
    task_id = hers(redis)
    refused = client.signature("bunch.infer", args=[1], kwargs={"unknown": 1}, options={"queue": QUEUE})
    last = client.signature("other.task", options={"task_id": task_id, "queue": "elsewhere"})
    chain(refused, last, app=client).apply_async()
    worked_off(client)
    assert stored(redis, task_id)["result"] == "hers"


@pytest.mark.parametrize("secret", ["", "guessed, but not right"])
def test_no_answer_is_kept_for_somebody_elses_question(redis: Redis, client: Celery, secret: str) -> None:
    redis.lpush(QUEUE, from_frontend(str(uuid.uuid4()), "her-question" * 2, secret=secret, value="poison"))
    forged = celery_message(["poison"], headers={"bunch_once": "her-question" * 2 + ";60000", "bunch_owner": "alice"})
    redis.lpush(QUEUE, forged)
    worked_off(client)
    assert redis.keys(KEYS.cached() + ":*") == []
    # A frontend's own is kept: so it was not for want of a cache.
    redis.lpush(QUEUE, from_frontend(str(uuid.uuid4()), "her-question" * 2))
    wait_until(lambda: redis.keys(KEYS.cached() + ":*"), "hers is kept")
    redis.delete(*redis.keys(KEYS.cached() + ":*"))


def test_no_reply_goes_to_a_frontend(redis: Redis, client: Celery) -> None:
    listener = redis.pubsub()
    listener.subscribe("bunch:reply:hers")
    client.send_task("bunch.infer", ["mine"], queue=QUEUE, reply_to="bunch:reply:hers")
    worked_off(client)
    task_id = hers(redis)
    heard: list[bytes] = []

    def listen() -> bool:
        message = listener.get_message(ignore_subscribe_messages=True, timeout=0.1)
        heard.extend([message["data"]] if message else [])
        return bool(heard)

    wait_until(listen, "her reply")
    assert [each["task_id"] for each in json.loads(heard[0])] == [task_id]
    listener.close()


def test_a_forged_request_is_told_why_under_its_own_id(redis: Redis) -> None:
    task_id = str(uuid.uuid4())
    redis.lpush(QUEUE, from_frontend(task_id, secret=""))
    result = stored(redis, task_id)
    assert result["status"] == "FAILURE"
    assert "BUNCH_MESSAGE_SECRET" in result["result"]["exc_message"][0]


def test_a_plain_client_may_use_its_own_ids_again(client: Celery) -> None:
    task_id = str(uuid.uuid4())
    for args in (["a", {}, "refused"], ["b"]):
        client.send_task("bunch.infer", args, task_id=task_id, queue=QUEUE)
        worked_off(client)
    assert client.AsyncResult(task_id).get(timeout=PATIENCE_S) == "b"
