"""`Idempotency-Key` over HTTP."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any

import pytest

from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import Stack
from tests.waiting import wait_until


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def test_the_same_key_and_body_get_the_first_outcome(api: Api, key: str) -> None:
    body = {"input": {"n": 1, "t": "x"}, "model": "moody"}
    first = api.post("/v1/inference", body, Idempotency_Key=key)
    # A retry may have another time to go, and other white space.
    again = api.call(
        "POST",
        "/v1/inference",
        raw=b'{"model":"moody",  "input":{"t":"x", "n":1}, "timeout_ms":5000}',
        Idempotency_Key=key,
    )
    assert (first.status, again.status) == (200, 200)
    for field in ("task_id", "output"):
        assert first.json[field] == again.json[field]
    assert first.json["metadata"]["batch_id"] == again.json["metadata"]["batch_id"]
    later = api.post("/v1/inference", body, Idempotency_Key=key, Prefer="respond-async")
    assert (later.status, later.json["task_id"]) == (202, first.json["task_id"])
    assert api.result(first.json["task_id"])["output"] == first.json["output"]


def test_another_body_is_a_conflict(api: Api, key: str) -> None:
    assert api.post("/v1/inference", {"input": "x"}, Idempotency_Key=key).status == 200
    for body in ({"input": "y"}, {"input": "x", "parameters": {"k": 1}}, {"input": "x", "model": "moody"}):
        refused = api.post("/v1/inference", body, Idempotency_Key=key)
        assert (refused.status, refused.error) == (409, "IDEMPOTENCY_CONFLICT")


def test_an_error_of_the_model_is_an_outcome_too(api: Api, key: str) -> None:
    body = {"input": {"reject": "no"}, "model": "moody"}
    answers = [api.post("/v1/inference", body, Idempotency_Key=key) for _ in range(2)]
    assert [(each.status, each.error) for each in answers] == [(422, "INPUT_REJECTED")] * 2


@pytest.mark.parametrize("value", ["", "é", "x" * 256])
def test_a_key_that_is_none(api: Api, value: str) -> None:
    refused = api.post("/v1/inference", {"input": "x"}, Idempotency_Key=value)
    assert (refused.status, refused.error) == (400, "INVALID_HEADER")


@pytest.mark.parametrize(("path", "field"), [("/v1/predict", "input_data"), ("/api/inference", "input")])
def test_the_other_ways_in(api: Api, key: str, path: str, field: str) -> None:
    outputs = [api.post(path, {field: "x"}, Idempotency_Key=key).json["output"] for _ in range(2)]
    assert outputs == ["x", "x"]
    assert api.post(path, {field: "y"}, Idempotency_Key=key).error == "IDEMPOTENCY_CONFLICT"


def test_bulk_is_one_call(api: Api, key: str) -> None:
    def bulk(*inputs: Any) -> Any:
        return api.post("/v1/inference/bulk", {"inputs": inputs, "model": "moody"}, Idempotency_Key=key)

    first, again = bulk(1, 1, {"reject": "no"}), bulk(1, 1, {"reject": "no"})
    assert first.json["results"][0]["task_id"] != first.json["results"][1]["task_id"]
    assert [each.get("output") for each in first.json["results"]] == [
        each.get("output") for each in again.json["results"]
    ]
    assert first.json["results"][0]["task_id"] == again.json["results"][0]["task_id"]
    assert first.json["results"][2]["error"] == again.json["results"][2]["error"] == "INPUT_REJECTED"
    assert bulk(1, 1).error == "IDEMPOTENCY_CONFLICT"


def test_the_outcome_is_there_after_the_first_connection_broke(api: Api, stack: Stack, gate: Gate, key: str) -> None:
    gate.occupy()
    body = {"input": {"first": key}, "model": "moody"}
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
    connection.request("POST", "/v1/inference", json.dumps(body), headers)
    with stack.redis() as redis:
        wait_until(lambda: redis.llen("bunch.moody.paid"), what="it is queued")
        connection.close()
        # Long enough for a hang-up to be noticed: another caller's, who gave no key, is.
        gone = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
        name = f"gone-{key}"
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        gone.request("POST", "/v1/inference", json.dumps(body), headers)
        wait_until(lambda: redis.llen("bunch.moody.paid") == 2, what="the other is queued")
        task_id = api.get(f"/internal/requests/{name}").json["task_id"]
        gone.close()
        wait_until(lambda: redis.zscore("bunch:cancelled", task_id), what="the other's hang-up is noticed")
    gate.open()
    again = api.post("/v1/inference", body, Idempotency_Key=key)
    assert (again.status, again.json["output"]["echo"]) == (200, {"first": key})
