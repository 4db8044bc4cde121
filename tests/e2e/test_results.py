"""Requests whose callers do not wait on the same connection: states, long-poll, cancelling, looking them up."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import PATIENT
from tests.waiting import wait_until

# As long as a poll may take here; one that is told ends much sooner, on whatever machine.
POLL_MS = PATIENT["request_timeout_ms"]
SOON_S = POLL_MS / 1000 / 2


@pytest.mark.parametrize(
    "prefer", ["respond-async", "Respond-Async", "wait=5, respond-async; x", 'handling="strict",respond-async']
)
def test_respond_async(api: Api, prefer: str) -> None:
    answer = api.post("/v1/inference", {"input": "later"}, Prefer=prefer)

    assert answer.status == 202
    assert answer.json.keys() == {"task_id", "request_id", "status"}
    assert answer.json["status"] == "PENDING"
    assert answer.headers["location"] == f"/v1/result/{answer.json['task_id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    api.outcome(answer.json["task_id"])
    polled = api.get(answer.headers["location"] + "?wait_ms=5000")
    assert polled.status == 200
    document = polled.json
    ended = datetime.fromisoformat(document.pop("completed_at"))
    assert ended.tzinfo
    assert abs(ended.timestamp() - time.time()) < 60
    assert document == {"task_id": answer.json["task_id"], "status": "SUCCESS", "output": "later"}


@pytest.mark.parametrize("prefer", ["return=minimal", "not-respond-async", 'x="respond-async"', ""])
def test_another_preference_waits(api: Api, prefer: str) -> None:
    answer = api.post("/v1/inference", {"input": "now"}, Prefer=prefer)
    assert (answer.status, answer.json["output"]) == (200, "now")
    assert "preference-applied" not in answer.headers


def events_of(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    lines = [each.splitlines() for each in body.decode().split("\n\n")]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in (each for each in lines if each and each[0].startswith("event: "))
    ]


def test_the_states_of_a_request_as_events(api: Api, gate: Gate) -> None:
    gate.occupy()
    task_id = api.later(gate.wish, "moody")
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.request("GET", f"/v1/result/{task_id}", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    waiting = b""
    while b"PENDING" not in waiting:
        waiting += response.readline()
    gate.open()
    events = events_of(waiting + response.read())
    connection.close()
    assert [name for name, _ in events] == ["status"] * (len(events) - 1) + ["result"]
    states = [data["status"] for _, data in events[:-1]]
    assert states in (["PENDING", "SUCCESS"], ["PENDING", "STARTED", "SUCCESS"])
    assert events[-1][1] == api.result(task_id)
    # Of one that has ended, and is not kept.
    events = events_of(api.get(f"/v1/result/{task_id}?forget=true", Accept="text/event-stream").body)
    assert [(name, data["status"]) for name, data in events] == [("status", "SUCCESS"), ("result", "SUCCESS")]
    gone = api.get(f"/v1/result/{task_id}", Accept="text/event-stream")
    assert (gone.status, gone.error) == (404, "UNKNOWN_TASK")


def test_the_states_of_a_request_that_runs(api: Api, gate: Gate) -> None:
    task_id = api.later(gate.wish, "moody")
    wait_until(lambda: api.result(task_id)["status"] == "STARTED", what="it has started")
    assert api.result(task_id) == {"task_id": task_id, "status": "STARTED"}
    assert api.get(f"/internal/requests/{task_id}").json["status"] == "processing"
    refused = api.call("DELETE", f"/v1/result/{task_id}")
    assert (refused.status, refused.error) == (409, "ALREADY_FINISHED")

    gate.open()
    assert api.outcome(task_id)["status"] == "SUCCESS"
    # Long after its end, and as often as one likes.
    assert api.result(task_id)["output"]["echo"] == gate.wish
    refused = api.call("DELETE", f"/v1/result/{task_id}")
    assert (refused.status, refused.error) == (409, "ALREADY_FINISHED")
    life = api.get(f"/internal/requests/{task_id}").json
    assert (life["status"], life["task_id"], life["error"]) == ("completed", task_id, None)
    assert life["latency_ms"] == pytest.approx(life["queue_ms"] + life["compute_ms"], abs=0.01)


def test_a_long_poll_ends_with_its_own_time(api: Api, gate: Gate) -> None:
    task_id = api.later(gate.wish, "moody")
    began = time.monotonic()
    polled = api.result(task_id, wait_ms=500)
    took_s = time.monotonic() - began
    gate.open()

    assert polled["status"] in {"PENDING", "STARTED"}
    assert 0.4 <= took_s < 60
    assert api.outcome(task_id)["status"] == "SUCCESS"


def test_a_long_poll_ends_as_soon_as_there_is_a_result(api: Api, gate: Gate) -> None:
    task_id = api.later(gate.wish, "moody")
    # More than one process could hold: both frontends wait for a request that one of them took.
    polls = [api._pool.submit(api.result, task_id, POLL_MS) for _ in range(16)]
    wait_until(lambda: api.result(task_id)["status"] == "STARTED", what="it has started")
    time.sleep(0.3)
    assert not any(poll.done() for poll in polls)
    gate.open()
    began = time.monotonic()
    assert {poll.result()["status"] for poll in polls} == {"SUCCESS"}
    assert time.monotonic() - began < SOON_S


def test_failures_have_their_code(api: Api) -> None:
    for wish, code in (({"reject": "no"}, "INPUT_REJECTED"), ({"raise": "oh"}, "INFERENCE_FAILED")):
        task_id = api.later(wish, "moody")
        result = api.outcome(task_id)
        assert result.keys() == {"task_id", "status", "completed_at", "error", "message"}
        assert (result["status"], result["error"]) == ("FAILURE", code)
        life = api.get(f"/internal/requests/{task_id}").json
        assert (life["status"], life["error"]["error"]) == ("failed", code)


def test_what_has_not_started_can_be_taken_back(api: Api, gate: Gate) -> None:
    gate.occupy()
    task_id = api.later("cancel me", "moody")
    assert api.result(task_id)["status"] == "PENDING"
    assert api.get(f"/internal/requests/{task_id}").json["status"] == "queued"

    for _ in range(2):
        cancelled = api.call("DELETE", f"/v1/result/{task_id}")
        assert cancelled.status == 200
        assert cancelled.json == {"task_id": task_id, "status": "CANCELLED"}
    assert api.outcome(task_id) == {"task_id": task_id, "status": "CANCELLED"}

    gate.open()
    # The batch that it would have been in has gone by without it.
    assert api.infer("after it", "moody").json["output"]["batch"] == 1
    assert api.result(task_id) == {"task_id": task_id, "status": "CANCELLED"}
    assert api.get(f"/internal/requests/{task_id}").json["status"] == "failed"


def test_whoever_waits_for_a_request_that_is_taken_back_is_told(api: Api, gate: Gate) -> None:
    gate.occupy()
    task_id = api.later("cancel me", "moody")
    poll = api._pool.submit(api.result, task_id, POLL_MS)
    time.sleep(0.2)
    began = time.monotonic()
    assert api.call("DELETE", f"/v1/result/{task_id}").status == 200
    assert poll.result()["status"] == "CANCELLED"
    assert time.monotonic() - began < SOON_S
    gate.open()


def test_a_result_is_seen_from_every_frontend(api: Api) -> None:
    task_ids = [api.later(n) for n in range(8)]
    # New connections go to both processes in turn, so each is asked about results of the other.
    for _ in range(2):
        for n, task_id in enumerate(task_ids):
            assert api.outcome(task_id)["output"] == n


def test_a_request_is_found_by_its_callers_own_id(api: Api, gate: Gate) -> None:
    own_id = f"order-{uuid.uuid4().hex}"
    body = {"input": gate.wish, "model": "moody"}
    waiting = api._pool.submit(api.post, "/v1/inference", body, X_Request_Id=own_id)
    wait_until(lambda: api.get(f"/internal/requests/{own_id}").status == 200, what="it is known")
    wait_until(lambda: api.get(f"/internal/requests/{own_id}").json["status"] == "processing", what="it has started")
    gate.open()

    answer = waiting.result()
    assert answer.json["request_id"] == own_id
    for known_as in (own_id, answer.json["task_id"]):
        life = api.get(f"/internal/requests/{known_as}").json
        assert (life["status"], life["request_id"], life["task_id"]) == ("completed", known_as, answer.json["task_id"])
        assert life["batch_id"] == answer.json["metadata"]["batch_id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/inference", {"input": 1}), ("/v1/predict", {"input_data": 1}), ("/api/inference", {"input": "1"})],
)
def test_a_request_is_found_by_the_id_that_its_caller_was_told(api: Api, path: str, body: dict[str, object]) -> None:
    request_id = api.post(path, body).json["request_id"]
    assert api.get(f"/internal/requests/{request_id}").json["status"] == "completed"
    assert str(api.result(request_id)["output"]) == "1"


def test_what_has_been_told_can_be_forgotten(api: Api, gate: Gate) -> None:
    task_id = api.later(gate.wish, "moody")
    wait_until(lambda: api.result(task_id)["status"] == "STARTED", what="it has started")
    # There is no outcome yet, and so nothing that could be dropped.
    assert api.get(f"/v1/result/{task_id}?forget=true").json["status"] == "STARTED"
    gate.open()
    api.outcome(task_id)
    assert api.get(f"/v1/result/{task_id}?wait_ms=8000&forget=false").json["status"] == "SUCCESS"
    assert api.get(f"/v1/result/{task_id}?forget=maybe").error == "INVALID_INPUT"
    told = api.get(f"/v1/result/{task_id}?forget=true").json
    assert (told["status"], told["output"]["echo"]) == ("SUCCESS", gate.wish)
    gone = api.get(f"/v1/result/{task_id}")
    assert (gone.status, gone.error) == (404, "UNKNOWN_TASK")


def test_a_failure_can_be_forgotten_too(api: Api) -> None:
    task_id = api.later({"fail": "no"}, "moody")
    api.outcome(task_id)
    told = api.get(f"/v1/result/{task_id}?wait_ms=8000&forget=1").json
    assert (told["status"], told["error"]) == ("FAILURE", "INFERENCE_FAILED")
    assert told["completed_at"]
    assert api.get(f"/v1/result/{task_id}").status == 404


def test_an_idempotency_key_whose_outcome_is_forgotten_is_a_new_one(api: Api) -> None:
    body, headers = {"input": 1, "model": "moody"}, {"Idempotency_Key": str(uuid.uuid4())}
    task_id = api.post("/v1/inference", body, Prefer="respond-async", **headers).json["task_id"]
    api.outcome(task_id)
    assert api.get(f"/v1/result/{task_id}?wait_ms=8000&forget=true").json["status"] == "SUCCESS"
    repeated = api.post("/v1/inference", body, **headers)
    assert (repeated.status, repeated.json["output"]["echo"]) == (200, 1)
    assert repeated.json["task_id"] != task_id
