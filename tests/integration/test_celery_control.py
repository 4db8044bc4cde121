"""Events and remote control of a worker that is busy with a batch, and other programs on the same Redis."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from cli.supervisor.ports import free_port
from config.keys import RESULT_PREFIX
from tests.integration.celery_harness import PATIENCE_S, plain_worker
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until

NODE = "bunch@here"
FULL = 64


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery")) as rig:
        yield rig


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


class Listener:
    """An EventReceiver of its own; `tasks` are the events of our worker, in order, by task id."""

    def __init__(self, rig: Rig) -> None:
        self.tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._rig = rig
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def kinds(self, task_id: str) -> list[str]:
        return [event["type"].removeprefix("task-") for event in self.tasks[task_id]]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(PATIENCE_S)
        replies = self._rig.client.control.enable_events(destination=[NODE], reply=True, timeout=PATIENCE_S, limit=1)
        assert "ok" in replies[0][NODE]
        return self

    def __exit__(self, *_error: object) -> None:
        self._rig.client.control.disable_events(destination=[NODE], reply=True, timeout=PATIENCE_S, limit=1)
        self._receiver.should_stop = True
        self._thread.join()

    def _listen(self) -> None:
        with self._rig.client.connection_for_read() as connection:
            self._receiver = self._rig.client.events.Receiver(connection, handlers={"*": self._heard})
            self._receiver.on_consume_ready = lambda *_ready, **_more: self._listening.set()
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def _heard(self, event: dict[str, Any]) -> None:
        if event["type"].startswith("task-") and event["hostname"] == NODE:
            self.tasks[event["uuid"]].append(event)


def ended(listener: Listener, ids: list[str]) -> bool:
    return all(listener.kinds(each)[-1:] in (["succeeded"], ["failed"], ["revoked"]) for each in ids)


def test_each_task_is_seen_from_its_receipt_to_its_end(rig: Rig, name: str) -> None:
    inputs: list[Any] = [f"{name}{n}" for n in range(12)]
    inputs[3], inputs[7] = {"raise": name}, {"reject": name}
    with Listener(rig) as listener:
        results = [rig.infer(each).apply_async() for each in inputs]
        wait_until(lambda: ended(listener, [each.id for each in results]), "every end is heard")
        rig.settle()
    for number, result in enumerate(results):
        events = listener.tasks[result.id]
        end = "failed" if number in {3, 7} else "succeeded"
        assert listener.kinds(result.id) == ["received", "started", end]
        assert [event["clock"] for event in events] == sorted(event["clock"] for event in events)
        assert events[0]["name"] == "bunch.infer"
    assert listener.tasks[results[0].id][-1]["result"] == f'"{name}0"'
    assert name in listener.tasks[results[3].id][-1]["exception"]


def test_what_never_started_is_seen_as_revoked(rig: Rig, name: str) -> None:
    with Listener(rig) as listener:
        with rig.occupied():
            late = rig.infer(name).apply_async(expires=0.1)
            victim = rig.infer(name).apply_async()
            victim.revoke()
            wait_until(lambda: victim.id in rig.inspect().revoked()[NODE], "our worker knows")
            time.sleep(0.1)
        wait_until(lambda: ended(listener, [late.id, victim.id]), "every end is heard")
    for result, expired in ((late, True), (victim, False)):
        assert listener.kinds(result.id) == ["received", "revoked"]
        assert listener.tasks[result.id][-1]["expired"] is expired


def test_over_the_sampling_rate_a_task_is_seen_whole_or_not_at_all(rig: Rig, name: str) -> None:
    with Listener(rig) as listener:
        results = [rig.infer(f"{name}{n}").apply_async() for n in range(600)]
        for each in results:
            each.get(timeout=PATIENCE_S)
        rig.settle()
        seen = [each for each in results if listener.kinds(each.id)]
        wait_until(lambda: ended(listener, [each.id for each in seen]), "every end is heard")
    assert 50 < len(seen) <= 600
    assert {tuple(listener.kinds(each.id)) for each in seen} == {("received", "started", "succeeded")}


def test_batches_are_as_large_as_they_may_be_while_requests_wait(rig: Rig, name: str) -> None:
    """clokep/celery-batches#17: asked for 1000, always 48, which is what its worker prefetches."""
    with rig.occupied():
        results = [rig.infer(f"{name}{n}").apply_async() for n in range(10 * FULL)]
    for each in results:
        each.get(timeout=PATIENCE_S)
    stored = rig.redis.mget([RESULT_PREFIX + each.id for each in results])
    assert {json.loads(raw)["bunch"]["batch_size"] for raw in stored} == {FULL}


def test_a_worker_with_a_long_batch_answers_at_once(rig: Rig) -> None:
    with rig.occupied() as held:
        for ask in ("ping", "active", "stats", "active_queues", "registered", "reserved", "scheduled", "revoked"):
            began = time.monotonic()
            # As many seconds as a node has that does not answer.
            replies = getattr(rig.inspect(PATIENCE_S), ask)()
            assert NODE in replies, ask
            assert time.monotonic() - began < PATIENCE_S / 4, ask
        active = rig.inspect().active()[NODE]
        assert [(each["id"], each["name"]) for each in active] == [(held.id, "bunch.infer")]
        assert rig.inspect().query_task(held.id)[NODE][held.id][0] == "active"
        queues = {each["name"] for each in rig.inspect().active_queues()[NODE]}
        assert queues == {f"bunch.echo.{tier}" for tier in ("enterprise", "paid", "free")}


def test_stats_are_strict_json_with_a_section_of_ours(rig: Rig) -> None:
    stats = rig.inspect().stats()[NODE]
    assert json.loads(json.dumps(stats, allow_nan=False)) == stats
    ours = stats["bunch"]
    assert ours["state"] == "running"
    assert [(each["model"], each["state"]) for each in ours["models"]] == [("echo", "ready")]
    assert stats["total"]["bunch.infer"] > 0


@contextmanager
def intruder(rig: Rig) -> Iterator[None]:
    """A plain worker on our queues, which takes any message for lost after a fifth of a second."""
    worker = plain_worker(
        rig.folder,
        rig.url,
        "intruder",
        "-Q",
        "bunch.echo.enterprise,bunch.echo.paid,bunch.echo.free",
        PLAIN_VISIBILITY_TIMEOUT="0.2",
    ).start()
    try:
        wait_until(lambda: rig.inspect(0.5, "intruder@here").ping(), "it is there")
        yield
    finally:
        worker.stop()


@contextmanager
def flower(rig: Rig) -> Iterator[None]:
    """Flower as its manual starts it."""
    port = free_port()
    log = (rig.folder / "flower.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", f"--broker={rig.url}", "flower", "--address=127.0.0.1", f"--port={port}"],
        cwd=rig.folder,
        stdout=log,
        stderr=log,
    )

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, "Flower answers")
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            log.close()


@pytest.mark.parametrize("guest", [intruder, flower], ids=["a worker on our queues", "Flower"])
def test_a_guest_disturbs_no_lease(rig: Rig, name: str, guest: Any) -> None:
    with rig.occupied() as held:
        before = rig.redis.keys("bunch:lease:*")
        assert len(before) == 1
        with guest(rig):
            # Several of the guest's sweeps for what it takes for lost.
            time.sleep(1.5)
            assert rig.redis.keys("bunch:lease:*") == before
    assert held.state == "SUCCESS"
    rig.settle()
    assert sum(each == held.result for each in rig.computed()) == 1
    assert rig.infer(name).apply_async().get(timeout=PATIENCE_S) == name


def test_what_a_worker_on_our_queues_steals_is_answered_loudly(rig: Rig, name: str) -> None:
    with rig.occupied(), intruder(rig):
        stolen = rig.infer(name).apply_async()
        with pytest.raises(Exception, match=r"bunch\.infer"):
            stolen.get(timeout=PATIENCE_S)
        assert stolen.state == "FAILURE"
