"""A callback that could not be noted: its caller is told so, and the request is not left to itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from config.keys import Shard
from config.settings import Settings
from config.shards import only_home
from config.tiers import Tier
from tasks.callbacks.store import CallbackStore
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable
from tasks.protocol.caller import ANYBODY
from webapp.callbacks import Callbacks


class Queue:
    """A client whose queue takes everything, and whose replica has what `confirms` says."""

    def __init__(self, *, confirms: bool = True) -> None:
        self.confirms = confirms
        self.confirmed: list[str] = []
        self.cancelled: list[str] = []

    def receipt(self, pending: Any) -> str:
        return cast("str", pending.task_id)

    def confirm(self, key: str) -> None:
        self.confirmed.append(key)
        if not self.confirms:
            raise BackendUnavailable("no replica")

    def cancel(self, task_id: str) -> None:
        self.cancelled.append(task_id)

    def result(self, _task_id: str, _wait_s: float) -> None:
        return None


def note(queue: Queue, *, runs_on: bool = False) -> str:
    """Note the callback of a request that the queue has taken; `runs_on`: it has an Idempotency-Key."""
    redis = SimpleNamespace(register_script=lambda _: None)
    callbacks = Callbacks(Settings(callback_hosts="receiver"), only_home(cast("Any", redis)), cast("Any", queue))
    submission = Submission("m", ANYBODY[Tier.PAID], b"1", 1.0)
    pending = SimpleNamespace(task_id="t1", runs_on=runs_on)
    try:
        return callbacks.noting(submission, "http://receiver/")(cast("Any", pending))
    finally:
        gevent.sleep(0)


@pytest.fixture
def is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RedisConnectionError

    monkeypatch.setattr(CallbackStore, "owe", refuse)


@pytest.fixture
def takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallbackStore, "owe", lambda *_: None)


@pytest.mark.usefixtures("is_away")
def test_a_request_whose_callback_could_not_be_noted_is_cancelled() -> None:
    queue = Queue()
    with pytest.raises(BackendUnavailable, match="callback"):
        note(queue)
    assert queue.cancelled == ["t1"]


@pytest.mark.usefixtures("is_away")
def test_a_request_that_an_earlier_call_with_its_key_was_promised_is_not_cancelled_by_a_repetition() -> None:
    queue = Queue()
    with pytest.raises(BackendUnavailable, match="callback"):
        note(queue, runs_on=True)
    assert not queue.cancelled


@pytest.mark.usefixtures("takes_it")
def test_a_callback_is_promised_only_when_a_replica_has_it_where_one_is_asked_for() -> None:
    queue = Queue()
    assert note(queue) == "t1"
    assert queue.confirmed == [Shard().callback("t1")]
    with pytest.raises(BackendUnavailable, match="callback"):
        note(queue := Queue(confirms=False))
    assert queue.cancelled == ["t1"]
