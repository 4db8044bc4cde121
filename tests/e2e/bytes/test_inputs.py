"""Inputs that are bytes, as bodies and in JSON, through a whole stack."""

from __future__ import annotations

import base64
import re
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest

from tests.e2e.bytes.sent import LARGE, MOST_BYTES, PNG, described, npy, output, post, stream
from tests.e2e.client import Api


@pytest.mark.parametrize("content_type", ["application/octet-stream", "image/png", "IMAGE/PNG; charset=binary"])
def test_a_body_is_the_input(api: Api, content_type: str) -> None:
    kind = content_type.partition(";")[0].lower()
    assert output(post(api, PNG, content_type)) == described(PNG, content_type=kind)


def test_the_rest_is_in_the_query(api: Api) -> None:
    answer = post(api, PNG, "image/png", model="described", parameters={"top": [1]}, timeout_ms=60_000)
    assert output(answer) == described(PNG, top=[1], content_type="image/png")


def test_a_body_larger_than_json_may_be(api: Api) -> None:
    assert output(post(api, LARGE, "application/octet-stream")) == described(
        LARGE, content_type="application/octet-stream"
    )


def test_a_body_over_the_limit_is_not_received(api: Api) -> None:
    assert post(api, bytes(MOST_BYTES + 1), "image/png").error == "PAYLOAD_TOO_LARGE"
    assert api.call("POST", "/v1/inference", raw=bytes(2_000_000)).error == "PAYLOAD_TOO_LARGE", "JSON has its own"
    assert api.call("POST", "/v1/predict", raw=bytes(2_000_000), Content_Type="image/png").status == 413


def test_base64_in_json(api: Api) -> None:
    wrapped = {"$base64": base64.b64encode(PNG).decode()}
    assert output(api.infer(wrapped, parameters={"content_type": "image/png"})) == described(
        PNG, content_type="image/png"
    )
    url = f"data:image/png;base64,{wrapped['$base64']}"
    assert output(api.infer(url)) == described(PNG, content_type="image/png")
    assert output(api.infer(wrapped, "echo")) == wrapped, "to a model of JSON it is JSON"


def test_base64_at_the_other_doors(api: Api) -> None:
    wrapped = {"$base64": base64.b64encode(PNG).decode()}
    assert output(api.post("/v1/predict", {"model_id": "described", "input_data": wrapped})) == described(PNG)
    assert output(api.post("/api/inference", {"input": f"data:;base64,{wrapped['$base64']}"})) == described(PNG)
    bulk = api.post("/v1/inference/bulk", {"inputs": [wrapped, "text", {"$base64": "?"}, wrapped]})
    results = bulk.json["results"]
    assert [each.get("error") for each in results] == [None, "INVALID_INPUT", "INVALID_INPUT", None]
    assert results[3]["output"] == described(PNG)
    assert results[1]["message"].startswith("inputs[1]: ")


def test_an_array(api: Api) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    expected = {"type": "ndarray", "dtype": "int16", "shape": [2, 3], "values": array.tolist()}
    assert output(post(api, npy(array), "application/x-npy", model="arrays")) == expected
    assert output(api.infer({"$base64": base64.b64encode(npy(array)).decode()}, "arrays")) == expected


def test_a_table(api: Api) -> None:
    columns = {"a": [1, None], "b": ["x", "y"]}
    answer = post(api, stream(pa.table(columns)), "application/vnd.apache.arrow.stream", model="tables")
    assert output(answer) == {"type": "Table", "columns": columns}


@pytest.mark.parametrize(
    ("content_type", "model"),
    [
        ("image/png", "echo"),
        ("application/octet-stream", "echo"),
        ("image/png", "texts"),
        ("image/png", "arrays"),
        ("application/x-npy", "tables"),
        ("text/plain", "described"),
        ("application/x-www-form-urlencoded", "described"),
    ],
)
def test_a_media_type_that_the_model_does_not_take(api: Api, content_type: str, model: str) -> None:
    answer = post(api, PNG, content_type, model=model)
    assert (answer.status, answer.error) == (415, "UNSUPPORTED_MEDIA_TYPE")
    # What to send instead.
    instead = "application/json" if model in {"echo", "texts"} else r"application/(octet-stream|vnd\.apache)"
    assert re.search(instead, answer.json["message"])


@pytest.mark.parametrize(
    "query",
    [
        {"parameters": "1"},
        {"parameters": "{"},
        {"parameters": '{}, "x": {}'},
        {"parameters": '{"a": 1, "a": 2}'},
        {"timeout_ms": "0"},
        {"timeout_ms": "soon"},
        {"client_id": "c" * 1000},
        "model=described&model=described",
        "parameters=%7B%22a%22:%22%FF%22%7D",
        "%FF=1",
    ],
)
def test_a_query_that_is_wrong(api: Api, query: dict[str, str] | str) -> None:
    text = query if isinstance(query, str) else urlencode(query)
    answer = api.call("POST", f"/v1/inference?{text}", raw=PNG, Content_Type="image/png")
    assert answer.status == 400
    assert answer.error in {"INVALID_INPUT", "INVALID_JSON"}


@pytest.mark.parametrize("query", ["wait_ms=1&wait_ms=0", "wait_ms=%FF"])
def test_a_query_that_is_wrong_at_a_result(api: Api, query: str) -> None:
    assert api.get(f"/v1/result/{api.later('text', 'echo')}?{query}").error == "INVALID_INPUT"


def test_a_query_names_what_is_wrong_with_it(api: Api) -> None:
    assert post(api, PNG, "image/png", parameters="[1]").error == "INVALID_INPUT"
    assert post(api, PNG, "image/png", parameters="{").error == "INVALID_JSON"
    for wrong in ("0", "-1", "soon"):
        assert (
            "timeout_ms must be a number of milliseconds, above 0"
            in (post(api, PNG, "image/png", timeout_ms=wrong).json["message"])
        )


def test_json_for_a_model_of_bytes(api: Api) -> None:
    for wrong in ("text", 1, None, [], {}, {"$base64": 1}, {"$base64": "?"}, {"$base64": "", "more": 1}):
        answer = api.infer(wrong, "described")
        assert (answer.status, answer.error) == (400, "INVALID_INPUT"), wrong


@pytest.mark.parametrize("model", ["arrays", "tables"])
def test_bytes_that_are_not_of_the_type(api: Api, model: str) -> None:
    for wrong in (b"", PNG, npy(np.array([{}], dtype=object))):
        answer = post(api, wrong, "application/octet-stream", model=model)
        assert (answer.status, answer.error) == (400, "INVALID_INPUT"), wrong


def test_the_same_bytes_with_one_key_are_one_request(api: Api) -> None:
    path, key = "/v1/inference", {"Idempotency-Key": "of-bytes"}
    first = api.call("POST", path, raw=PNG, Content_Type="image/png", **key)
    assert api.call("POST", path, raw=PNG, Content_Type="image/png", **key).json["task_id"] == first.json["task_id"]
    other = api.call("POST", path, raw=PNG + b"!", Content_Type="image/png", **key)
    assert other.error == "IDEMPOTENCY_CONFLICT"
    retyped = api.call("POST", path, raw=PNG, Content_Type="image/jpeg", **key)
    assert retyped.error == "IDEMPOTENCY_CONFLICT"
