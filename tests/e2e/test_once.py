"""The same question, asked again and by many, of a model that counts what it sees."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.e2e.client import Answer, Api
from tests.e2e.gate import EXECUTORS
from tests.e2e.stack import Stack
from tests.waiting import wait_until


@pytest.fixture
def question() -> str:
    """Nobody has asked it yet."""
    return str(uuid.uuid4())


def output(answer: Answer) -> bytes:
    """As it came, not as it reads."""
    return answer.body.split(b'"output":')[1].split(b',"latency_ms"')[0]


def test_a_kept_answer_is_the_same_bytes_and_says_so(api: Api, question: str) -> None:
    value = {"é": question, "n": 1.50}
    first, again = api.infer(value, "counting"), api.infer(dict(reversed(value.items())), "counting")
    assert (first.json["metadata"]["cached"], again.json["metadata"]["cached"]) == (False, True)
    assert output(again) == output(first)
    assert again.json["task_id"] != first.json["task_id"]
    assert again.json["metadata"]["batch_id"] == first.json["metadata"]["batch_id"]
    assert again.json["metadata"].keys() == first.json["metadata"].keys()
    assert api.result(again.json["task_id"])["output"] == first.json["output"]


def test_it_can_be_asked_for_later(api: Api, question: str) -> None:
    first = api.infer(question, "counting")
    assert api.outcome(api.later(question, "counting"))["output"] == first.json["output"]


@pytest.mark.parametrize("control", ["no-cache", "max-age=0, No-Store"])
def test_a_caller_may_want_it_computed(api: Api, question: str, control: str) -> None:
    body = {"input": question, "model": "counting"}
    first = api.post("/v1/inference", body)
    fresh = api.post("/v1/inference", body, Cache_Control=control)
    assert not fresh.json["metadata"]["cached"]
    assert fresh.json["metadata"]["batch_id"] != first.json["metadata"]["batch_id"]
    bulk = {"inputs": [question], "model": "counting"}
    kept = api.post("/v1/inference/bulk", bulk)
    assert kept.json["results"][0]["output"] == first.json["output"]


def test_a_model_without_a_cache_computes_each(api: Api, question: str) -> None:
    answers = [api.infer(question, "moody") for _ in range(2)]
    assert not any(each.json["metadata"]["cached"] for each in answers)
    assert len({each.json["metadata"]["batch_id"] for each in answers}) == 2


def total(api: Api, name: str) -> float:
    """The counts of all models."""
    lines = re.findall(rf"^{name}{{.*}} (.*)$", api.get("/metrics").body.decode(), re.MULTILINE)
    return sum(map(float, lines))


def test_a_thousand_at_once_reach_the_model_once(api: Api, question: str) -> None:
    value = {"q": question, "sleep": 0.3}
    before = total(api, "bunch_collapsed_total") + total(api, "bunch_cache_hits_total")
    bulk = api.aside("/v1/inference/bulk", {"inputs": [value] * 500, "model": "counting"})
    answers = api.all([value] * 500, "counting")
    assert {each.status for each in answers} == {200}
    # Each worker's model counts what it sees.
    assert len({output(each) for each in answers}) == 1
    assert len({each.json["metadata"]["batch_id"] for each in answers}) == 1
    results = bulk.result().json["results"]
    assert [each["output"] for each in results] == [answers[0].json["output"]] * 500
    ids = [each["task_id"] for each in (*results, *(each.json for each in answers))]
    assert len(set(ids)) == 1000

    def counted() -> bool:
        # And perhaps what came just before.
        return total(api, "bunch_collapsed_total") + total(api, "bunch_cache_hits_total") - before >= 999

    wait_until(counted, what="all but one are counted")


def test_a_model_that_is_loaded_anew_is_asked_anew(api: Api, stack: Stack, store: Redis, question: str) -> None:
    def loads() -> int:
        return int(store.get("bunch:edition:counting") or 0)

    loaded = loads()
    first, kept = api.infer(question, "counting"), api.infer(question, "counting")
    assert kept.json["metadata"]["cached"]
    assert stack.manage("reload", "counting").returncode == 0

    def fresh() -> bool:
        again = api.infer(question, "counting").json["metadata"]
        return bool(again["batch_id"] != first.json["metadata"]["batch_id"])

    wait_until(fresh, what="it is computed by what was loaded")
    wait_until(lambda: loads() == loaded + 2, what="both workers have loaded it")


class Held:
    """The executors of `counting`, held until `open`."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._path = folder / "gate"
        self._api = api
        self._held: list[str] = []
        # One by one: together they might be one batch, and the other executor free.
        for n in range(EXECUTORS):
            self._held.append(api.later({"hold": str(self._path), "n": n}, "counting"))
            wait_until(partial(self._has_started, self._held[-1]), what="an executor is held")

    def open(self) -> None:
        """Returns when they have ended, and nothing of them is left for the next test to count."""
        self._path.touch()
        for task_id in self._held:
            wait_until(partial(self._has_ended, task_id), what="it goes on")

    def _has_started(self, task_id: str) -> bool:
        return bool(self._api.result(task_id)["status"] == "STARTED")

    def _has_ended(self, task_id: str) -> bool:
        # Of one that was held for too long nothing may be known any more.
        answer = self._api.get(f"/v1/result/{task_id}")
        return answer.status == 404 or answer.json["status"] not in {"PENDING", "STARTED"}


@pytest.fixture
def held(api: Api, tmp_path: Path) -> Iterator[Held]:
    each = Held(api, tmp_path)
    yield each
    each.open()


def asked(store: Redis) -> set[bytes]:
    """The marks of questions that somebody waits for."""
    return set(store.keys("bunch:asked:*"))


def waiting(store: Redis, before: set[bytes]) -> int:
    """The requests that are new since, and those that wait with them."""
    ours = asked(store) - before
    return len(ours) + sum(store.hlen(name.replace(b":asked:", b":joined:", 1)) for name in ours)


def queued(store: Redis) -> list[int]:
    return [store.llen(f"bunch.counting.{tier}") for tier in ("enterprise", "paid", "free")]


def test_each_caller_gets_what_is_right_for_it(api: Api, store: Redis, held: Held, question: str) -> None:
    before = asked(store)
    first = api.later(question, "counting")
    patient = [api.soon(question, "counting") for _ in range(5)]
    other = api.later(question, "counting")
    wait_until(lambda: waiting(store, before) == 7, what="all wait")
    # Not counted: on a machine that stands still its time may be over before anybody looks.
    hasty = api.soon(question, "counting", timeout_ms=300)
    assert sum(queued(store)) == 1
    assert hasty.result().error == "DEADLINE_EXCEEDED"
    assert api.call("DELETE", f"/v1/result/{first}").status == 200
    assert api.call("DELETE", f"/v1/result/{other}").status == 200
    held.open()
    answers = [each.result() for each in patient]
    assert [each.status for each in answers] == [200] * 5
    assert len({output(each) for each in answers}) == 1
    assert len({each.json["task_id"] for each in answers}) == 5
    assert [api.result(each)["status"] for each in (first, other)] == ["CANCELLED"] * 2


def test_the_highest_tier_that_waits_decides_the_queue(api: Api, store: Redis, held: Held, question: str) -> None:
    body = {"input": question, "model": "counting"}
    calls: list[tuple[str, Future[Answer]]] = []
    before = asked(store)
    for tier, where in (("free", [0, 0, 1]), ("paid", [0, 1, 0]), ("free", [0, 1, 0]), ("enterprise", [1, 0, 0])):
        calls.append((tier, api.aside("/v1/inference", body, X_Tier=tier)))
        wait_until(lambda: waiting(store, before) == len(calls), what=f"{tier} waits")
        assert queued(store) == where
    held.open()
    answers = [(tier, call.result()) for tier, call in calls]
    assert [each.json["metadata"]["tier"] for _, each in answers] == [tier for tier, _ in answers]
    assert len({output(each) for _, each in answers}) == 1


def test_a_killed_worker_costs_nobody_an_answer(
    api: Api, stack: Stack, store: Redis, tmp_path: Path, question: str
) -> None:
    gate = tmp_path / "gate"
    value: dict[str, Any] = {"q": question, "hold": str(gate)}
    before = asked(store)
    first = api.later(value, "counting")
    wait_until(lambda: api.result(first)["status"] == "STARTED", what="it is computed")
    others = [api.soon(value, "counting") for _ in range(4)]
    wait_until(lambda: waiting(store, before) == 5, what="all wait")
    for pid in stack.pids("worker"):
        os.kill(pid, signal.SIGKILL)
    gate.touch()
    answers = [each.result() for each in others]
    assert [each.status for each in answers] == [200] * 4, answers
    assert {each.json["output"][0]["q"] for each in answers} == {question}
    assert {each.json["metadata"]["attempt"] for each in answers} == {2}
    assert api.result(first)["output"] == answers[0].json["output"]
    wait_until(stack.all_run, what="the workers are back")
