"""The options of a task that a plain client may give: when, until when, how. Others are refused, loudly."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError

from config.keys import RESULT_PREFIX
from tests.fakes.messages import celery_message
from tests.integration.celery_harness import PATIENCE_S, close_client, infer, plain_client
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery")) as rig:
        yield rig


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize(
    "when",
    [
        lambda: {"countdown": 0.8},
        lambda: {"eta": datetime.now(UTC) + timedelta(seconds=0.8)},
        lambda: {"eta": datetime.now(timezone(timedelta(hours=5))) + timedelta(seconds=0.8)},
    ],
    ids=["countdown", "eta", "eta in another zone"],
)
def test_it_runs_once_and_not_before_its_time(rig: Rig, name: str, when: Any) -> None:
    began = time.time()
    assert rig.infer(name).apply_async(**when()).get(timeout=PATIENCE_S) == name
    assert time.time() - began >= 0.75
    rig.settle()
    assert rig.computed().count(name) == 1


def test_an_expired_task_is_never_computed(rig: Rig, name: str) -> None:
    with rig.occupied():
        late = rig.infer(name).apply_async(expires=0.2, link_error=rig.task("failed", name))
        in_time = rig.infer(f"{name}+").apply_async(expires=60)
        time.sleep(0.3)
    with pytest.raises(Exception, match="deadline of the request passed"):
        late.get(timeout=PATIENCE_S)
    assert (late.state, type(late.result).__name__) == ("FAILURE", "DeadlineExceeded")
    assert in_time.get(timeout=PATIENCE_S) == f"{name}+"
    wait_until(lambda: rig.noted(name), "the errback")
    rig.settle()
    assert name not in rig.computed()
    assert rig.noted(name) == [[late.id]]


@pytest.mark.parametrize("way", ["AsyncResult.revoke", "control.revoke"])
def test_a_revoked_task_is_never_computed(rig: Rig, name: str, way: str) -> None:
    with rig.occupied():
        victim = rig.infer(name).apply_async(link=rig.task("note", f"{name}ok"), link_error=rig.task("failed", name))
        after = rig.infer(f"{name}+").apply_async()
        victim.revoke() if way == "AsyncResult.revoke" else rig.client.control.revoke(victim.id)
        # Heard while the model is busy.
        with pytest.raises(TaskRevokedError):
            victim.get(timeout=PATIENCE_S)
        wait_until(lambda: victim.id in rig.inspect().revoked()["bunch@here"], "our worker knows")
    assert after.get(timeout=PATIENCE_S) == f"{name}+"
    rig.settle()
    assert name not in rig.computed()
    assert victim.state == "REVOKED"
    assert (rig.noted(name), rig.noted(f"{name}ok")) == ([], [])


def test_a_task_may_be_revoked_before_its_time(rig: Rig, name: str) -> None:
    victim = rig.infer(name).apply_async(countdown=1.0)
    victim.revoke()
    with pytest.raises(TaskRevokedError):
        victim.get(timeout=PATIENCE_S)
    wait_until(lambda: not rig.redis.zcard("bunch:delayed:echo"), "its time comes")
    rig.settle()
    assert name not in rig.computed()


def test_the_rest_of_a_revoked_chain_is_revoked(rig: Rig, name: str) -> None:
    with rig.occupied():
        last = chain(rig.infer(name), rig.task("note", name), app=rig.client).apply_async()
        last.parent.revoke()
        wait_until(lambda: last.parent.id in rig.inspect().revoked()["bunch@here"], "our worker knows")
    wait_until(lambda: rig.client.AsyncResult(last.id).state == "REVOKED", "the chain ends")
    rig.settle()
    assert rig.noted(name) == []


def test_revoking_what_is_being_computed_changes_nothing(rig: Rig) -> None:
    with rig.occupied() as held:
        held.revoke()
        # The plain worker hears of it too, and knows the task no better than its stored state.
        for node in ("bunch@here", "plain@here"):
            wait_until(lambda: held.id in rig.inspect(node=node).revoked()[node], "both know")  # noqa: B023
        assert held.state == "STARTED"
    assert held.get(timeout=PATIENCE_S)["hold"]


def test_terminating_what_is_being_computed_is_refused(rig: Rig) -> None:
    with rig.occupied() as held:
        arguments = {"task_id": held.id, "terminate": True, "signal": "KILL"}
        replies = rig.client.control.broadcast(
            "revoke", arguments=arguments, reply=True, timeout=PATIENCE_S, limit=1, destination=["bunch@here"]
        )
    assert "cannot be terminated" in replies[0]["bunch@here"]["error"]
    assert held.state == "SUCCESS"


def test_an_ignored_result_is_not_stored_and_its_links_are_called(rig: Rig, name: str) -> None:
    ignored = rig.infer(name).apply_async(ignore_result=True, link=rig.task("note", name))
    wait_until(lambda: rig.noted(name), "the callback")
    # Before anything fails: then what came through is run once more, to tell whether the process is good for anything.
    assert rig.computed().count(name) == 1
    failing = rig.infer({"raise": name}).apply_async(ignore_result=True, link_error=rig.task("failed", name))
    wait_until(lambda: len(rig.noted(name)) == 2, "callback and errback")
    rig.settle()
    assert sorted(rig.noted(name)) == sorted([[name], [failing.id]])
    assert not rig.redis.exists(RESULT_PREFIX + ignored.id, RESULT_PREFIX + failing.id)


@pytest.mark.parametrize("compression", ["zlib", "bzip2", "lzma"])
def test_compressed_messages(rig: Rig, name: str, compression: str) -> None:
    value = {"name": name, "text": "so " * 1000}
    assert rig.infer(value).apply_async(compression=compression).get(timeout=PATIENCE_S) == value
    rig.settle()
    assert rig.computed().count(value) == 1


@pytest.mark.parametrize("priority", [0, 3, 5, 9])
def test_a_priority_is_no_dead_end(rig: Rig, name: str, priority: int) -> None:
    assert rig.infer(name).apply_async(priority=priority).get(timeout=PATIENCE_S) == name
    rig.settle()
    assert rig.computed().count(name) == 1


@pytest.mark.parametrize("steps", [list(range(10)), [0, 2, 4], [5]], ids=str)
def test_nor_is_one_of_a_client_with_other_steps(rig: Rig, name: str, steps: list[int]) -> None:
    client = plain_client(rig.url, broker_transport_options={"priority_steps": steps})
    try:
        sent = [infer(client, f"{name}{n}").apply_async(priority=n) for n in range(10)]
        assert [each.get(timeout=PATIENCE_S) for each in sent] == [f"{name}{n}" for n in range(10)]
    finally:
        close_client(client)


class TestProtocol1:
    """Celery 3, and clients in other languages."""

    @pytest.fixture
    def old(self, rig: Rig) -> Iterator[Rig]:
        newer, rig.client = rig.client, plain_client(rig.url, task_protocol=1)
        yield rig
        close_client(rig.client)
        rig.client = newer

    def test_a_task(self, old: Rig, name: str) -> None:
        result = old.client.send_task("bunch.infer", kwargs={"input": name}, queue="bunch.echo.free")
        assert result.get(timeout=PATIENCE_S) == name

    @pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"countdown": 0.3}], ids=str)
    def test_links(self, old: Rig, name: str, options: dict[str, Any]) -> None:
        old.infer(name).apply_async(link=old.task("note", name), **options).get(timeout=PATIENCE_S)
        failing = old.infer({"raise": name}).apply_async(link_error=old.task("failed", name), **options)
        wait_until(lambda: len(old.noted(name)) == 2, "callback and errback")
        old.settle()
        assert sorted(old.noted(name)) == sorted([[name], [failing.id]])

    def test_expiry(self, old: Rig, name: str) -> None:
        with old.occupied():
            late = old.infer(name).apply_async(expires=0.2)
            time.sleep(0.3)
        with pytest.raises(Exception, match="deadline of the request passed"):
            late.get(timeout=PATIENCE_S)
        assert name not in old.computed()

    def test_a_chain(self, old: Rig, name: str) -> None:
        steps = chain(old.infer(4), old.task("double"), old.infer(), old.task("note", name), app=old.client)
        assert steps.apply_async().get(timeout=PATIENCE_S) == 8
        old.settle()
        assert old.noted(name) == [[8]]

    def test_a_chord(self, old: Rig, name: str) -> None:
        result = chord([old.infer(n) for n in range(4)], app=old.client)(old.task("total", name))
        assert result.get(timeout=PATIENCE_S) == 6
        old.settle()
        assert old.noted(name) == [[[0, 1, 2, 3]]]


REFUSED = {
    "another task": ({"task": "other.task", "args": [1]}, "not 'bunch.infer'"),
    "no input": ({"args": []}, "takes one input"),
    "three arguments": ({"args": [1, {}, 2]}, "takes one input"),
    "an unknown keyword": ({"args": [1], "kwargs": {"model": "echo"}}, "model"),
    "a pickle": ({"args": [1], "serializer": "pickle"}, "only JSON"),
}


@pytest.mark.parametrize(("sent", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_served_fails_at_once_and_says_why(rig: Rig, sent: dict[str, Any], words: str) -> None:
    options = {"task": "bunch.infer", **sent}
    result = rig.client.send_task(options.pop("task"), queue="bunch.echo.paid", **options)
    with pytest.raises(Exception, match=words):
        result.get(timeout=PATIENCE_S)
    assert result.state == "FAILURE"


def test_an_unknown_compression_fails_at_once_and_says_which(rig: Rig, name: str) -> None:
    message = json.loads(celery_message([1], task_id=name))
    message["headers"]["compression"] = "application/x-brotli"
    rig.redis.lpush("bunch.echo.paid", json.dumps(message))
    with pytest.raises(Exception, match="application/x-brotli"):
        rig.client.AsyncResult(name).get(timeout=PATIENCE_S)
