"""`callback_url`: results are pushed by a real ops worker, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from docs.examples.callback_receiver import is_genuine
from tasks.fleet.dead_letters import DeadLetters
from tests.e2e.client import Answer, Api
from tests.e2e.conftest import CALLBACK_SECRET
from tests.e2e.gate import Gate
from tests.e2e.stack import Stack
from tests.fakes.receiver import Receiver, receiving
from tests.shards import places_of
from tests.waiting import wait_until


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as each:
        yield each


def ask(api: Api, input: object, url: str, model: str = "echo", **fields: Any) -> Answer:
    body = {"input": input, "model": model, "callback_url": url, **fields}
    return api.post("/v1/inference", body, Prefer="respond-async")


def pushed(receiver: Receiver, task_id: str) -> list[dict[str, Any]]:
    bodies = [json.loads(each.body) for each in tuple(receiver.sent)]
    return [each for each in bodies if each["task_id"] == task_id]


def arrives(receiver: Receiver, answer: Answer) -> dict[str, Any]:
    assert answer.status == 202, answer
    return wait_until(lambda: pushed(receiver, answer.json["task_id"]), what="it is pushed")[0]


def test_results_are_pushed_as_they_are_read_and_signed(api: Api, receiver: Receiver) -> None:
    answers = [ask(api, {"n": number}, receiver.url) for number in range(20)]
    for answer in answers:
        assert arrives(receiver, answer) == api.result(answer.json["task_id"])
    assert all(
        is_genuine(CALLBACK_SECRET, each.headers["bunch-signature"], each.body, time.time()) for each in receiver.sent
    )
    assert len(receiver.sent) == len(answers)

    def all_paid() -> bool:
        metrics = api.get("/metrics").body.decode()
        return 'bunch_callbacks_total{outcome="delivered"}' in metrics and "bunch_callbacks_owed 0" in metrics

    wait_until(all_paid, what="it is counted, and nothing is owed any more")


def test_the_url_may_stand_in_a_header(api: Api, receiver: Receiver) -> None:
    answer = api.call("POST", "/v1/inference", {"input": 1}, Prefer="respond-async", **{"Callback-URL": receiver.url})
    assert arrives(receiver, answer)["output"] == 1


def test_a_failure_and_a_cancellation_are_outcomes_too(api: Api, gate: Gate, receiver: Receiver) -> None:
    refused = arrives(receiver, ask(api, {"reject": "no"}, receiver.url, "moody"))
    assert (refused["status"], refused["error"]) == ("FAILURE", "INPUT_REJECTED")
    gate.occupy()
    answer = ask(api, 1, receiver.url, "moody")
    assert api.call("DELETE", f"/v1/result/{answer.json['task_id']}", raw=None).status == 200
    assert arrives(receiver, answer)["status"] == "CANCELLED"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://localhost:1/", "not among the hosts"),
        ("http://a.example.org/", "must be https"),
        ("http://169.254.169.254/latest/meta-data", "not among the hosts"),
        ("", "must be an http or https URL"),
        (7, "callback_url"),
    ],
)
def test_a_url_that_is_not_allowed_is_refused_before_anything_is_queued(api: Api, url: Any, told: str) -> None:
    answer = ask(api, 1, url)
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert told in answer.json["message"]


def test_a_caller_who_waits_gets_no_callback(api: Api, receiver: Receiver) -> None:
    answer = api.infer(1, callback_url=receiver.url)
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert "respond-async" in answer.json["message"]


def test_a_killed_sender_loses_nothing(stack: Stack, api: Api, receiver: Receiver) -> None:
    receiver.hangs.set()
    (killed,) = stack.pids("ops")
    answer = ask(api, "held", receiver.url)
    wait_until(lambda: pushed(receiver, answer.json["task_id"]), what="it is under way")
    os.kill(killed, signal.SIGKILL)
    receiver.hangs.clear()
    later = ask(api, "meanwhile", receiver.url)
    wait_until(lambda: len(pushed(receiver, answer.json["task_id"])) > 1, what="it is sent again")
    arrives(receiver, later)
    wait_until(lambda: stack.all_run() and killed not in stack.pids("ops"))


def test_killed_frontends_lose_nothing(stack: Stack, api: Api, receiver: Receiver) -> None:
    answer = ask(api, "slow", receiver.url, "slow", timeout_ms=1500)
    killed = stack.frontends()
    for each in killed:
        each.kill()
    assert arrives(receiver, answer)["task_id"] == answer.json["task_id"]
    wait_until(lambda: len({*stack.frontends()} - {*killed}) == 2, what="both are replaced")


def test_what_nobody_takes_is_a_dead_letter_that_can_be_replayed(
    stack: Stack, api: Api, store: Redis, receiver: Receiver
) -> None:
    receiver.statuses[:] = [410, 204]
    task_id = ask(api, "gone", receiver.url).json["task_id"]
    letters = DeadLetters(places_of(store))
    letter_id = f"callback:{task_id}"
    (letter, _) = wait_until(lambda: letters.show(letter_id))
    assert "status 410" in letter.reason
    assert stack.manage("dlq", "replay", letter_id).returncode == 0
    wait_until(lambda: len(pushed(receiver, task_id)) == 2)
    assert letter_id not in letters.ids()
