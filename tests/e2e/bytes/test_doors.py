"""Bytes at the other doors: KServe by HTTP and gRPC, embeddings, Celery; and a model of pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from celery import Celery
from PIL import Image, ImageDraw, ImageFont

from cli.supervisor.ports import free_port
from tests.e2e.bytes.sent import LARGE, PNG, described
from tests.e2e.client import Answer, Api
from tests.e2e.stack import Stack
from tests.e2e.test_grpc import Channel
from tests.e2e.test_grpc import tensor as grpc_tensor
from tests.waiting import wait_until

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from webapp.grpc.proto import open_inference_pb2 as pb  # noqa: E402 - needs gRPC's packages


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
        numbers = np.arange(100, dtype=np.float64)
        rows = grpc_tensor("x", "FP64", [1, 100])
        answer = channel.infer("roots", rows, raw_input_contents=[numbers.tobytes()])
        assert answer.raw_output_contents == [np.sqrt(numbers).astype(np.float32).tobytes()]
        with pytest.raises(grpc.RpcError) as refused:
            channel.infer("echo", grpc_tensor("input", "BYTES", [1]), raw_input_contents=[framed])
        assert "the limit of its model" in refused.value.details()
    finally:
        channel.close()
        process.kill()
        process.wait()


def roots(api: Api, rows: Any, *, binary: bool = True) -> Answer:
    size = {"binary_data_size": rows.nbytes}
    head = {"name": "x", "datatype": "FP64", "shape": list(rows.shape), "parameters": size}
    asked = json.dumps({"inputs": [head], "parameters": {"binary_data_output": binary}}).encode()
    length = {"Inference_Header_Content_Length": str(len(asked))}
    return api.call("POST", "/v2/models/roots/infer", raw=asked + rows.tobytes(), **length)


@pytest.mark.parametrize("columns", [1, 300, 60_000], ids=["as JSON", "in its result", "beside the queue"])
def test_an_output_of_numbers_comes_in_binary_form(api: Api, columns: int) -> None:
    rows = np.arange(2 * columns, dtype=np.float64).reshape(2, columns)
    wanted = np.sqrt(rows).astype(np.float32)
    answer = roots(api, rows)
    assert (answer.status, answer.body[-wanted.nbytes :]) == (200, wanted.tobytes())
    (described,) = json.loads(answer.body[: int(answer.headers["inference-header-content-length"])])["outputs"]
    assert described == {
        "name": "root",
        "datatype": "FP32",
        "shape": [2, columns],
        "parameters": {"binary_data_size": wanted.nbytes},
    }
    if columns < 1000:
        assert roots(api, rows, binary=False).json["outputs"][0]["data"] == pytest.approx(np.sqrt(rows).ravel())


def test_what_is_no_number_has_a_binary_form_alone(api: Api) -> None:
    rows = np.array([[4.0, -1.0]])
    found = np.frombuffer(roots(api, rows).body[-8:], np.float32)
    assert np.array_equal(found, [2, math.nan], equal_nan=True)
    refused = roots(api, rows, binary=False)
    assert (refused.status, "NaN" in refused.json["error"]) == (500, True)
