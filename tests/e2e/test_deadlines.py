"""Deadlines: the caller's own, and the server's. The age limit of the queue: `test_overload`."""

from __future__ import annotations

import time

import pytest

from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import PATIENT
from tests.waiting import wait_until


@pytest.mark.parametrize("by", ["body", "header"])
def test_a_model_slower_than_the_callers_time(api: Api, gate: Gate, by: str) -> None:
    began = time.monotonic()
    if by == "body":
        answer = api.infer(gate.wish, "moody", timeout_ms=700)
    else:
        answer = api.post("/v1/inference", {"input": gate.wish, "model": "moody"}, X_Timeout_Ms="700")
    took_s = time.monotonic() - began
    gate.open()

    assert (answer.status, answer.error) == (504, "DEADLINE_EXCEEDED")
    # Its own time, not the server's; and the model cannot have answered.
    assert 0.6 <= took_s < PATIENT["request_timeout_ms"] / 1000
    # The executor was at work on something else; it is not harmed.
    assert api.infer("next", "moody").status == 200


def test_the_body_goes_before_the_header(api: Api) -> None:
    body = {"input": 1, "model": "simulated", "timeout_ms": 30_000}
    assert api.post("/v1/inference", body, X_Timeout_Ms="1").status == 200


def test_late_answers_are_found_by_the_id_in_the_error(api: Api, gate: Gate) -> None:
    # Time enough to be claimed on a machine that stands still.
    late = api.infer({**gate.wish, "n": 1}, "moody", timeout_ms=4000)
    gate.open()
    assert late.error == "DEADLINE_EXCEEDED"
    request_id = late.json["request_id"]

    def finished() -> bool:
        return bool(api.get(f"/internal/requests/{request_id}").json.get("status") == "completed")

    wait_until(finished, what="its result is stored all the same")
    assert api.result(request_id)["output"]["echo"]["n"] == 1
