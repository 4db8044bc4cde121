"""Outputs that are bytes, by the caller's `Accept`, and one table for a whole batch."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.e2e.bytes.sent import output, post, stream
from tests.e2e.client import Answer, Api


def drawn(api: Api, what: str, accept: str) -> Answer:
    return api.post("/v1/inference", {"input": what, "model": "drawn"}, Accept=accept)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("image/*", "image/png"),
        ("application/octet-stream", "image/png"),
        ("image/avif,image/png;q=0.8,*/*;q=0.5", "image/png"),
        ("application/json;q=0.2, image/png", "image/png"),
        ("*/*", "application/json"),
        ("application/json, */*", "application/json"),
        ("application/json, image/*;q=0.9", "application/json"),
        ("image/jpeg", "application/json"),
        ("image/*;q=0", "application/json"),
        ("image/*;q=x", "application/json"),
        ("audio/*", "application/json"),
    ],
)
def test_an_output_of_bytes_is_the_body_for_who_asks_for_it(api: Api, accept: str, kind: str) -> None:
    answer = drawn(api, "png", accept)
    assert (answer.status, answer.headers["content-type"]) == (200, kind)
    if kind == "application/json":
        assert base64.b64decode(answer.json["output"]) == b"\x89PNG"
        assert answer.json["metadata"]["content_type"] == "image/png"
        return
    assert answer.body == b"\x89PNG"
    told = json.loads(answer.headers["bunch-metadata"])
    assert told["task_id"] == told["request_id"] == answer.headers["x-request-id"]
    assert told["model"] == "drawn"
    assert told["größe"] == [1, 2]
    assert told["batch_size"] == 1
    assert {"latency_ms", "queue_ms", "compute_ms", "batch_id", "tier", "attempt", "cached", "model_version"} <= {*told}
    assert "compute;dur=" in answer.headers["server-timing"]
    assert answer.headers["vary"] == "Accept"


@pytest.mark.parametrize(
    ("what", "kind", "body"),
    [
        ("bytes", "application/octet-stream", b"plain"),
        ("view", "application/octet-stream", b"a view"),
        ("html", "text/html", b"<script>"),
        ("a wrong type", "application/octet-stream", b"?"),
    ],
)
def test_what_kind_of_bytes_it_is_the_model_says(api: Api, what: str, kind: str, body: bytes) -> None:
    answer = drawn(api, what, "application/octet-stream")
    assert (answer.headers["content-type"], answer.body) == (kind, body)
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "set-cookie" not in answer.headers


def test_metadata_too_long_for_a_header_is_left_out(api: Api) -> None:
    told = json.loads(drawn(api, "much metadata", "image/png").headers["bunch-metadata"])
    assert "more" not in told
    assert told["content_type"] == "image/png"
    answer = drawn(api, "a long type", "application/octet-stream")
    assert (answer.headers["content-type"], answer.body) == ("application/octet-stream", b"m")
    assert len(answer.headers["bunch-metadata"]) < 6000


@pytest.mark.parametrize("what", ["text", "liar", "null", "dict"])
def test_what_is_no_bytes_stays_json(api: Api, what: str) -> None:
    answer = drawn(api, what, "application/octet-stream, image/*")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["output"] in ("text", "AAAA", None, {"a": [1, 2]})


def test_an_error_stays_json(api: Api) -> None:
    assert drawn(api, "failure", "image/*").error == "INFERENCE_FAILED"


@pytest.mark.parametrize(("what", "values"), [("array", [[0, 1, 2], [3, 4, 5]]), ("numbers", [1.5, 2.5])])
def test_an_array_for_who_asks_for_one(api: Api, what: str, values: list[Any]) -> None:
    answer = drawn(api, what, "application/x-npy")
    assert answer.headers["content-type"] == "application/x-npy"
    assert np.load(io.BytesIO(answer.body), allow_pickle=False).tolist() == values
    assert drawn(api, what, "*/*").json["output"] == values


@pytest.mark.parametrize(
    ("what", "columns"),
    [
        ("table", {"a": [1, 2], "b": ["x", "y"]}),
        ("records", {"a": [1, 2]}),
        ("dict", {"a": [1, 2]}),
        ("numbers", {"output": [1.5, 2.5]}),
        ("array", {"output": [[0, 1, 2], [3, 4, 5]]}),
    ],
)
def test_a_table_for_who_asks_for_one(api: Api, what: str, columns: dict[str, Any]) -> None:
    answer = drawn(api, what, "application/vnd.apache.arrow.stream")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert pa.ipc.open_stream(answer.body).read_all().to_pydict() == columns


@pytest.mark.parametrize("what", ["ragged", "text", "table"])
def test_what_is_no_array_stays_json(api: Api, what: str) -> None:
    answer = drawn(api, what, "application/x-npy")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


def test_at_the_other_doors_and_later(api: Api) -> None:
    answer = api.post("/v1/predict", {"model_id": "drawn", "input_data": "png"}, Accept="image/*")
    assert (answer.body, answer.headers["content-type"]) == (b"\x89PNG", "image/png")
    task_id = api.later("png", "drawn")
    assert api.outcome(task_id)["metadata"]["content_type"] == "image/png"
    answer = api.get(f"/v1/result/{task_id}", Accept="image/png")
    assert (answer.body, answer.headers["content-type"]) == (b"\x89PNG", "image/png")
    bulk = api.post("/v1/inference/bulk", {"inputs": ["png", "text"], "model": "drawn"}, Accept="image/png")
    assert [each["output"] for each in bulk.json["results"]] == [base64.b64encode(b"\x89PNG").decode(), "text"]


def test_one_table_for_the_whole_batch(api: Api) -> None:
    """Tables of other columns are other calls, and everybody gets the rows of their own."""
    tables = [pa.table({"a": list(range(n)), "b": [n] * n}) for n in range(4)]
    tables.append(pa.table({"b": [1.5], "a": [2.5]}))
    wrapped = [{"$base64": base64.b64encode(stream(each)).decode()} for each in tables]
    # They are queued together.
    results = api.post("/v1/inference/bulk", {"inputs": wrapped, "model": "sums"}).json["results"]
    expected = [{"sum": [each + n for each in range(n)]} for n in range(4)] + [{"sum": [4.0]}]
    assert [each["output"] for each in results] == expected
    assert len({api.get(f"/internal/requests/{each['task_id']}").json["batch_id"] for each in results}) == 1


def test_one_table_gives_its_rows_in_arrow_too(api: Api) -> None:
    path = "/v1/inference?model=sums"
    kind = "application/vnd.apache.arrow.stream"
    raw = stream(pa.table({"a": [1, 2], "b": [3, 4]}))
    answer = api.call("POST", path, raw=raw, Content_Type=kind, Accept=kind)
    assert pa.ipc.open_stream(answer.body).read_all().to_pydict() == {"sum": [4, 6]}


@pytest.mark.parametrize(("returns", "error"), [("too few", "of 1 rows"), ("a number", "a int"), ("a list", "")])
def test_one_table_with_a_wrong_number_of_rows(api: Api, returns: str, error: str) -> None:
    raw = stream(pa.table({"returns": [returns, returns]}))
    answer = post(api, raw, "application/vnd.apache.arrow.stream", model="sums")
    if error:
        assert (answer.error, error in answer.json["message"]) == ("INFERENCE_FAILED", True)
    else:
        assert output(answer) == [0, 1]
