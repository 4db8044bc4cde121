"""Triton's own client over gRPC: every datatype, streams, deadlines, errors, statistics."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from checks import GRPC, KEY, check, main
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

client = triton.InferenceServerClient(GRPC)
HEADERS = {"authorization": f"Bearer {KEY}"}
ROWS = {
    "a": np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 7,
    "b": np.array(["é".encode(), b""], dtype=np.object_),
    "h": np.array([[0.1], [65504]], dtype=np.float16),
    "i": np.array([2**63 - 1, -(2**63)], dtype=np.int64),
    "t": np.array([[True, False], [False, True]]),
}


def inputs_of(rows: dict[str, np.ndarray]) -> list[triton.InferInput]:
    made = []
    for name, values in rows.items():
        each = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        each.set_data_from_numpy(values)
        made.append(each)
    return made


def texts(*values: str) -> list[triton.InferInput]:
    return inputs_of({"input": np.array([each.encode() for each in values], dtype=np.object_)})


def refused(says: str, *arguments: Any, **more: Any) -> None:
    try:
        client.infer(*arguments, headers=HEADERS, **more)
    except InferenceServerException as error:
        if says not in str(error):
            raise
    else:
        raise AssertionError(says)


@check("health and readiness")
def health() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tensors", headers=HEADERS)
    assert client.is_model_ready("tensors", "1", headers=HEADERS)


@check("metadata, configuration and repository index")
def metadata() -> None:
    assert client.get_server_metadata().name == "bunch"
    described = client.get_model_metadata("tensors", "1", headers=HEADERS)
    assert [(each.name, list(each.shape)) for each in described.inputs][:2] == [("a", [-1, -1, 2]), ("b", [-1, 1])]
    config = client.get_model_config("tensors", headers=HEADERS).config
    assert config.max_batch_size == 64
    assert config.input[0].data_type == 11
    index = {each.name: each.state for each in client.get_model_repository_index(headers=HEADERS).models}
    assert index["tensors"] == "READY"


@check("every datatype")
def datatypes() -> None:
    result = client.infer("tensors", inputs_of(ROWS), request_id="mine", headers=HEADERS)
    assert result.get_response().id == "mine"
    for name, values in ROWS.items():
        found = result.as_numpy(name)
        assert found.dtype == values.dtype, name
        assert (found == values).all(), name
    only = client.infer("tensors", inputs_of(ROWS), outputs=[triton.InferRequestedOutput("i")], headers=HEADERS)
    assert [each.name for each in only.get_response().outputs] == ["i"]


@check("64 asynchronous calls")
def many_at_once() -> None:
    came: queue.Queue[Any] = queue.Queue()
    for number in range(64):
        client.async_infer("echo", texts(str(number)), lambda result, error: came.put((result, error)), headers=HEADERS)
    answers = [came.get(timeout=60) for _ in range(64)]
    assert not [error for _, error in answers if error]
    assert {result.as_numpy("output")[0] for result, _ in answers} == {b"%d" % number for number in range(64)}


@check("a stream, in order, which an error does not end")
def stream() -> None:
    came: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(GRPC) as other:
        other.start_stream(lambda result, error: came.put((result, error)), headers=HEADERS)
        for number in range(20):
            other.async_stream_infer("nothing" if number == 7 else "echo", texts(str(number)))
        answers = [came.get(timeout=60) for _ in range(20)]
        other.stop_stream()
    assert "there is no model" in str(answers[7][1])
    found = [result.as_numpy("output")[0] for result, error in answers if error is None]
    assert found == [b"%d" % number for number in range(20) if number != 7]


@check("deadlines: the client's own, and the parameter in microseconds")
def deadlines() -> None:
    refused("DEADLINE_EXCEEDED", "slow", texts("a"), client_timeout=0.05)
    refused("deadline", "slow", texts("a"), timeout=1000, priority=1)


@check("errors as statuses with their text")
def errors() -> None:
    refused("[StatusCode.NOT_FOUND] there is no model", "nothing", texts("a"))
    refused("[StatusCode.INVALID_ARGUMENT] there is no input 'input'", "tensors", texts("a"))
    try:
        client.infer("echo", texts("a"))
    except InferenceServerException as error:
        if "UNAUTHENTICATED" not in str(error):
            raise
    else:
        raise AssertionError("a call without a key")
    refused("is INT64; echo takes BYTES", "echo", inputs_of({"input": ROWS["i"]}))


@check("statistics")
def statistics() -> None:
    (stats,) = client.get_inference_statistics("echo", headers=HEADERS).model_stats
    assert stats.name == "echo"
    assert len(client.get_inference_statistics(headers=HEADERS).model_stats) > 1


main()
