"""Inputs that are bytes, through a whole stack: raw bodies, base64 in JSON, and the messages of a Celery client."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import subprocess
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pyarrow as pa
import pytest
import schemathesis
from celery import Celery
from PIL import Image, ImageDraw, ImageFont
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import Stack
from tests.e2e.test_grpc import Channel
from tests.e2e.test_grpc import tensor as grpc_tensor
from tests.e2e.test_openapi import check
from tests.valkey import free_port
from tests.waiting import wait_until

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from webapp.grpc.proto import open_inference_pb2 as pb  # noqa: E402 - needs gRPC's packages

MODELS = """\
default_model = "described"

[models.described]
source = "tests.byte_models:Described"
input_type = "bytes"

[models.arrays]
source = "tests.byte_models:Arrays"
input_type = "npy"

[models.pixels]
source = "tests.byte_models:Arrays"
input_type = "npy"
inputs = [{ name = "image", datatype = "FP32", shape = [2, -1] }]

[models.thumbnails]
source = "tests.byte_models:Reversed"
input_type = "bytes"

[models.textline]
source = "workers.models.textline:TextLine"
input_type = "bytes"
timeout_ms = 30000

[models.eyes]
source = "tests.byte_models:Eyes"
input_type = "bytes"

[models.tables]
source = "tests.byte_models:Tables"
input_type = "arrow"

[models.drawn]
source = "tests.byte_models:Drawn"

[models.sums]
source = "tests.byte_models:Sums"
input_type = "arrow"
policy = "fixed"
max_wait_ms = 300

[models.echo]
source = "workers.models.echo:Echo"
"""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
LARGE = bytes(range(256)) * 12_000
MOST_BYTES = 4_000_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("bytes"), MODELS)
    try:
        limits = {"admission": "off", "blob_max_bytes": MOST_BYTES, "request_timeout_ms": 60_000}
        yield each.start("--web-workers=1", "--workers=1", "--no-flower", **limits)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


def post(api: Api, raw: bytes, content_type: str, /, **query: object) -> Answer:
    words = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in query.items()}
    path = "/v1/inference" + (f"?{urlencode(words)}" if words else "")
    return api.call("POST", path, raw=raw, Content_Type=content_type)


def output(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json["output"]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def form(*parts: tuple[str, bytes, str], boundary: str = "----B'", tail: str = "--") -> tuple[bytes, str]:
    """A body of parts, each a disposition, data and further headers, and its Content-Type."""
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: {disposition}\r\n{more}\r\n".encode() + data + b"\r\n"
        for disposition, data, more in parts
    )
    return body + f"--{boundary}{tail}\r\n".encode(), f'multipart/form-data; boundary="{boundary}"'


def part(name: str, data: bytes, content_type: str = "") -> tuple[str, bytes, str]:
    return f'form-data; name="{name}"', data, f"Content-Type: {content_type}\r\n" if content_type else ""


def described(raw: bytes, **parameters: object) -> dict[str, object]:
    return {"type": "bytes", "size": len(raw), "sha256": sha256(raw).hexdigest(), "parameters": parameters}


@pytest.mark.parametrize("content_type", ["application/octet-stream", "image/png", "IMAGE/PNG; charset=binary"])
def test_a_body_is_the_input(api: Api, content_type: str) -> None:
    kind = content_type.partition(";")[0].lower()
    assert output(post(api, PNG, content_type)) == described(PNG, content_type=kind)


def test_the_rest_is_in_the_query(api: Api) -> None:
    answer = post(api, PNG, "image/png", model="described", parameters={"top": [1]}, timeout_ms=5000)
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
        ("image/png", "arrays"),
        ("application/x-npy", "tables"),
        ("text/plain", "described"),
        ("application/x-www-form-urlencoded", "described"),
    ],
)
def test_a_media_type_that_the_model_does_not_take(api: Api, content_type: str, model: str) -> None:
    answer = post(api, PNG, content_type, model=model)
    assert (answer.status, answer.error) == (415, "UNSUPPORTED_MEDIA_TYPE")


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
    ],
)
def test_a_query_that_is_wrong(api: Api, query: dict[str, str]) -> None:
    assert post(api, PNG, "image/png", **query).status == 400


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


@pytest.fixture
def celery(stack: Stack) -> Iterator[Celery]:
    app = Celery("vanilla", broker=stack.redis_url, backend=stack.redis_url, set_as_current=False)
    yield app
    app.backend.result_consumer.stop()
    app.close()


def test_a_celery_client_sends_bytes(celery: Celery) -> None:
    wrapped = {"$base64": base64.b64encode(PNG).decode()}
    for value in (wrapped, PNG):
        sent = celery.send_task(
            "bunch.infer", [value], {"parameters": {"content_type": "image/png"}}, queue="bunch.described.paid"
        )
        assert sent.get(timeout=60) == described(PNG, content_type="image/png")


def test_the_description_has_the_bodies_that_the_models_take(api: Api) -> None:
    document = api.get("/openapi.json").json
    operation = document["paths"]["/v1/inference"]["post"]
    taken = {"application/octet-stream", "application/x-npy", "application/vnd.apache.arrow.stream", "image/*"}
    assert taken <= operation["requestBody"]["content"].keys()
    named = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
    assert named == {"model", "parameters", "timeout_ms", "client_id"}


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
    assert told["metadata"]["größe"] == [1, 2]
    assert told["metadata"]["batch_size"] == 1
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
    told = json.loads(drawn(api, "much metadata", "image/png").headers["bunch-metadata"])["metadata"]
    assert "more" not in told
    assert told["content_type"] == "image/png"


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
    assert api.result(task_id, wait_ms=20_000)["metadata"]["content_type"] == "image/png"
    answer = api.get(f"/v1/result/{task_id}", Accept="image/png")
    assert (answer.body, answer.headers["content-type"]) == (b"\x89PNG", "image/png")
    bulk = api.post("/v1/inference/bulk", {"inputs": ["png", "text"], "model": "drawn"}, Accept="image/png")
    assert [each["output"] for each in bulk.json["results"]] == [base64.b64encode(b"\x89PNG").decode(), "text"]


def test_one_table_for_the_whole_batch(api: Api) -> None:
    """Tables of other columns are other calls, and everybody gets the rows of their own."""
    tables = [pa.table({"a": list(range(n)), "b": [n] * n}) for n in range(4)]
    tables.append(pa.table({"b": [1.5], "a": [2.5]}))
    wrapped = [{"$base64": base64.b64encode(stream(each)).decode()} for each in tables]
    answers = api.all(wrapped, "sums")
    expected = [{"sum": [each + n for each in range(n)]} for n in range(4)] + [{"sum": [4.0]}]
    assert [output(each) for each in answers] == expected
    assert max(each.json["metadata"]["batch_size"] for each in answers) == len(tables)


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


def test_a_form_of_parts(api: Api) -> None:
    picture = part("input", PNG, "image/png")
    rest = {"model": "described", "parameters": {"top": 1}, "timeout_ms": 9000}
    expected = described(PNG, top=1, content_type="image/png")
    assert output(post(api, *form(picture, part("request", json.dumps(rest).encode(), "application/json")))) == expected
    apart = [part(name, json.dumps(value).encode().strip(b'"')) for name, value in rest.items()]
    assert output(post(api, *form(*apart, picture))) == expected
    assert output(post(api, *form(part("input", PNG)))) == described(PNG, content_type="application/octet-stream")
    assert output(post(api, *form(part("input", b"[1.50]", "application/json"), part("model", b"echo")))) == [1.5]


@pytest.mark.parametrize("boundary", ["b", "+++", "--", "a b", "x" * 70])
def test_any_boundary_that_there_may_be(api: Api, boundary: str) -> None:
    answer = post(api, *form(part("input", PNG, "image/png"), boundary=boundary))
    assert output(answer) == described(PNG, content_type="image/png")


def test_what_a_client_library_sends(stack: Stack) -> None:
    sent = httpx.post(
        stack.url + "/v1/inference",
        files={"input": ("cat.png", LARGE, "image/png")},
        data={"parameters": '{"top": 1}'},
        timeout=60,
    )
    assert sent.json()["output"] == described(LARGE, top=1, content_type="image/png")


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        ([], 400, "input"),
        ([part("request", b"{}")], 400, "input"),
        ([part("input", PNG), part("input", PNG)], 400, "input: it is there twice"),
        ([part("input", PNG), part("model", b"echo"), part("request", b'{"model": "echo"}')], 400, "twice"),
        ([part("input", PNG), part("file", PNG)], 400, "'file'"),
        ([part("input", PNG), part("request", b"[]")], 400, "object"),
        ([part("input", PNG), part("request", b'{"model": 1}')], 400, "model"),
        ([part("input", PNG), part("parameters", b'{"a": 1, "a": 2}')], 400, "twice"),
        ([part("input", PNG), part("parameters", b'{}, "model": "echo"')], 400, "parameters"),
        ([part("input", PNG), part("timeout_ms", b"-1")], 400, "timeout_ms"),
        ([part("input", PNG), part("model", b"\xff")], 400, "UTF-8"),
        ([part("input", PNG), part("request", b"x" * 1_100_000)], 413, "request"),
        ([part("input", b"1" * 1_100_000, "application/json"), part("model", b"echo")], 413, "JSON"),
        ([part("input", b"{", "application/json"), part("model", b"echo")], 400, "input"),
        ([part("input", PNG), part("model", b"echo")], 415, "echo takes JSON"),
        ([part("input", PNG, "text/html")], 415, "text/html"),
        ([("form-data; name=input", PNG, "Content-Transfer-Encoding: base64\r\n")], 415, "Transfer-Encoding"),
        ([("attachment; name=input", PNG, "")], 400, "multipart"),
        ([part(f"n{n}", b"") for n in range(100)], 400, "n0"),
        ([part("input", PNG, "a" * 20_000)], 400, "multipart"),
    ],
)
def test_a_form_that_is_wrong(api: Api, parts: list[tuple[str, bytes, str]], status: int, said: str) -> None:
    answer = post(api, *form(*parts))
    assert answer.status == status, answer.body
    assert said in answer.json["message"]
    assert answer.error


def test_a_form_without_a_boundary_or_an_end(api: Api) -> None:
    body, content_type = form(part("input", PNG))
    assert post(api, body, "multipart/form-data").error == "INVALID_HEADER"
    assert post(api, body, content_type.replace("B", "C")).error == "INVALID_INPUT"
    assert post(api, body[:-20], content_type).error == "INVALID_INPUT"


def test_a_form_from_a_page_of_another_site(api: Api) -> None:
    """A browser sends it without asking first."""
    body, content_type = form(part("input", PNG))
    path, about = "/v1/inference", {"Content_Type": content_type, "Origin": "https://evil.example"}
    answer = api.call("POST", path, raw=body, Sec_Fetch_Site="cross-site", **about)
    assert (answer.status, answer.error) == (403, "FORBIDDEN")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_it_is_as_described(stack: Stack, mode: GenerationMode) -> None:
    # It cannot say which model takes which body.
    excluded = [positive_data_acceptance] if mode is GenerationMode.POSITIVE else []
    check(schemathesis.openapi.from_url(stack.url + "/openapi.json"), "POST /v1/inference", mode, 25, excluded)


def tensors(api: Api, model: str, document: dict[str, Any], *raw: bytes) -> Answer:
    """An inference request of the Open Inference Protocol, with raw tensors behind it, as Triton's clients send it."""
    head = json.dumps(document).encode()
    about = {"Content_Type": "application/octet-stream", "Inference_Header_Content_Length": str(len(head))}
    return api.call("POST", f"/v2/models/{model}/infer", raw=b"".join([head, *raw]), **about)


def tensor(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def test_a_tensor_of_bytes_there_and_back(api: Api) -> None:
    rows = [PNG, b"", LARGE]
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in rows)
    document = {"inputs": [tensor("input", "BYTES", [3], len(raw))], "parameters": {"binary_data_output": True}}
    answer = tensors(api, "thumbnails", document, raw)
    assert answer.status == 200, answer.body
    behind = answer.body[int(answer.headers["inference-header-content-length"]) :]
    assert behind == b"".join(len(each).to_bytes(4, "little") + each[::-1] for each in rows)
    spelt = api.post("/v2/models/thumbnails/infer", {"inputs": [tensor("input", "BYTES", [1], 0) | {"data": ["ab"]}]})
    assert spelt.status == 400, "data and a size"
    document = {"inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "data": ["ab"]}]}
    (found,) = api.post("/v2/models/thumbnails/infer", document).json["outputs"]
    assert found["data"] == [base64.b64encode(b"ba").decode()]


def test_a_tensor_of_numbers_is_arrays(api: Api) -> None:
    array = np.array([[[1, 2], [3, np.nan]], [[5, 6], [7, 8]]], np.float32)
    document = {"inputs": [tensor("image", "FP32", [2, 2, 2], array.nbytes)]}
    answer = tensors(api, "pixels", document, array[1:].tobytes() * 2)
    rows = [json.loads(each) for each in answer.json["outputs"][0]["data"]]
    assert rows == [{"type": "ndarray", "dtype": "float32", "shape": [2, 2], "values": array[1].tolist()}] * 2
    refused = tensors(api, "pixels", document, array.tobytes())
    assert (refused.status, "NaN" in refused.json["error"]) == (500, True), "that is the model's output, not its input"


def test_a_tensor_too_large_for_a_model_of_json(api: Api) -> None:
    raw = len(LARGE).to_bytes(4, "little") + LARGE
    document = {"inputs": [tensor("input", "BYTES", [1], len(raw))]}
    assert tensors(api, "echo", document, raw).status == 413
    assert tensors(api, "described", document, raw).status == 200


def test_a_picture_is_read(stack: Stack, tmp_path: Path) -> None:
    """The line of the README, with the program that it names."""
    picture = tmp_path / "line.png"
    image = Image.new("RGB", (420, 60), "white")
    ImageDraw.Draw(image).text((10, 8), "A bunch of celery", fill="black", font=ImageFont.load_default(36))
    image.save(picture)
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--data-binary", f"@{picture}", "-H", "Content-Type: image/png",
         f"{stack.url}/v1/inference?model=textline&timeout_ms=60000"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["output"]["text"] == "A bunch of celery", done.stdout


def test_pictures_at_the_doors_for_embeddings(api: Api) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    embedded = api.post("/v1/embeddings", {"model": "eyes", "input": [url, url]})
    assert [each["embedding"] for each in embedded.json["data"]] == [[len(PNG), len("image/png")]] * 2
    assert api.post("/embed", {"inputs": url}).json == [[len(PNG), len("image/png")]]
    refused = api.post("/v1/embeddings", {"model": "eyes", "input": ["a text"]})
    assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_input")


def test_what_a_model_takes_is_listed(api: Api) -> None:
    rows = {each["id"]: each.get("input_type") for each in api.get("/v1/models").json["data"]}
    assert (rows["described"], rows["arrays"], rows["tables"], rows["echo"]) == ("bytes", "npy", "arrow", None)


def head(api: Api, length: str, content_type: str, path: str = "/v1/inference", more: str = "") -> bytes:
    """The beginning of the answer to a request whose body never comes."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as sock:
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n{length}\r\n{more}".encode()
        )
        return sock.recv(64)


def test_a_length_that_lies_costs_no_memory_and_no_time(api: Api) -> None:
    for length in (MOST_BYTES + 1, 10**13, 10**19):
        for kind in ("image/png", "multipart/form-data; boundary=b", "application/json"):
            assert b" 413 " in head(api, f"Content-Length: {length}\r\n", kind)
    chunk = f"{MOST_BYTES + 1:x}\r\n"
    assert b" 413 " in head(api, "Transfer-Encoding: chunked\r\n", "image/png", more=chunk)
    assert b" 100 " in head(api, f"Content-Length: {MOST_BYTES}\r\nExpect: 100-continue\r\n", "image/png")


@pytest.mark.parametrize(
    "path", ["/v1/inference?model=echo", "/v1/inference?model=arrays", "/v1/inference?model=tables"]
)
def test_a_body_that_its_model_does_not_take_is_not_received(api: Api, path: str) -> None:
    assert b" 415 " in head(api, f"Content-Length: {MOST_BYTES}\r\n", "image/png", path)


@pytest.mark.parametrize("content_type", ["image/png", "application/x-npy", "multipart/form-data; boundary=b"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "zstd"])
def test_compressed_bytes_are_not_unpacked(api: Api, content_type: str, encoding: str) -> None:
    bomb = zlib.compress(bytes(2_000_000), 9)
    answer = api.call("POST", "/v1/inference", raw=bomb, Content_Type=content_type, Content_Encoding=encoding)
    assert (answer.status, answer.error) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_bytes_and_arrays_over_grpc(stack: Stack) -> None:
    port = free_port()
    process = stack.spawn("grpc", f"--config={stack.config_file}", grpc_port=port, redis_url=stack.redis_url)
    channel = Channel(port)

    def is_ready() -> bool:
        assert process.poll() is None
        with contextlib.suppress(grpc.RpcError):
            return bool(channel.ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready)
        return False

    try:
        wait_until(is_ready, what="the gRPC role serves")
        framed = len(LARGE).to_bytes(4, "little") + LARGE
        answer = channel.infer("thumbnails", grpc_tensor("input", "BYTES", [1]), raw_input_contents=[framed])
        assert answer.raw_output_contents == [framed[:4] + LARGE[::-1]]
        array = np.array([[[1, 2], [3, 4]]], np.float32)
        image = grpc_tensor("image", "FP32", [1, 2, 2])
        answer = channel.infer("pixels", image, raw_input_contents=[array.tobytes()])
        assert json.loads(answer.raw_output_contents[0][4:])["values"] == array[0].tolist()
        with pytest.raises(grpc.RpcError) as refused:
            channel.infer("echo", grpc_tensor("input", "BYTES", [1]), raw_input_contents=[framed])
        assert "the limit of its model" in refused.value.details()
    finally:
        channel.close()
        process.kill()
        process.wait()
