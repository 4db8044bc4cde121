"""Triton's own client over HTTP: every datatype in both forms, compression, errors, statistics."""

from __future__ import annotations

import numpy as np
import tritonclient.http as triton
from checks import KEY, URL, check, main
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

client = triton.InferenceServerClient(URL.removeprefix("http://"), concurrency=8)


def headers() -> dict[str, str]:
    """A dict for each call: the client writes into it."""
    return {"Authorization": f"Bearer {KEY}"}


ROWS = {
    "a": np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 7,
    "b": np.array(["é".encode(), b""], dtype=np.object_),
    "h": np.array([[0.1], [65504]], dtype=np.float16),
    "i": np.array([2**63 - 1, -(2**63)], dtype=np.int64),
    "t": np.array([[True, False], [False, True]]),
}


def inputs_of(rows: dict[str, np.ndarray], *, binary: bool = True) -> list[triton.InferInput]:
    made = []
    for name, values in rows.items():
        each = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        each.set_data_from_numpy(values, binary_data=binary or values.dtype == np.float16)
        made.append(each)
    return made


def texts(*values: str, shape: list[int] | None = None) -> list[triton.InferInput]:
    made = triton.InferInput("input", shape or [len(values)], "BYTES")
    made.set_data_from_numpy(np.array(values, dtype=np.object_).reshape(shape or [len(values)]))
    return [made]


def same(result: triton.InferResult, rows: dict[str, np.ndarray]) -> None:
    for name, values in rows.items():
        found = result.as_numpy(name)
        assert found.dtype == values.dtype, name
        assert found.shape == values.shape, name
        if found.dtype == np.object_:
            # From JSON the client makes texts.
            found = np.array([each.encode() if isinstance(each, str) else each for each in found], dtype=np.object_)
        assert (found == values).all(), name


@check("health and readiness")
def health() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tensors", headers=headers())
    assert client.is_model_ready("tensors", "1", headers=headers())
    assert not client.is_model_ready("nothing", headers=headers())


@check("metadata and configuration")
def metadata() -> None:
    assert client.get_server_metadata(headers=headers())["name"] == "bunch"
    described = client.get_model_metadata("tensors", "1", headers=headers())
    assert [each["name"] for each in described["inputs"]] == list(ROWS)
    assert described["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, -1, 2]}
    assert client.get_model_config("tensors", headers=headers())["max_batch_size"] == 64


@check("repository index")
def repository() -> None:
    index = {each["name"]: each["state"] for each in client.get_model_repository_index(headers=headers())}
    assert index["tensors"] == "READY", index


@check("every datatype in binary form")
def all_datatypes_in_binary_form() -> None:
    same(client.infer("tensors", inputs_of(ROWS), headers=headers()), ROWS)


@check("every datatype in JSON that has a form in it")
def all_datatypes_in_json() -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=name == "h") for name in ROWS]
    same(client.infer("tensors", inputs_of(ROWS, binary=False), outputs=outputs, headers=headers()), ROWS)


@check("one of several outputs, and the caller's id")
def one_output_of_many() -> None:
    result = client.infer(
        "tensors", inputs_of(ROWS), outputs=[triton.InferRequestedOutput("i")], request_id="mine", headers=headers()
    )
    assert [each["name"] for each in result.get_response()["outputs"]] == ["i"]
    assert result.get_response()["id"] == "mine"


@check("no rows, and rows without elements")
def zero_rows_and_zero_elements() -> None:
    none = {name: values[:0] for name, values in ROWS.items()}
    answered = client.infer("tensors", inputs_of(none), headers=headers())
    assert answered.as_numpy("i").shape == (0,)
    empty = {**ROWS, "a": np.zeros((2, 0, 2), dtype=np.float32)}
    same(client.infer("tensors", inputs_of(empty), headers=headers()), {"b": ROWS["b"], "i": ROWS["i"]})


@check("gzip and deflate, both ways")
def compression() -> None:
    many = {name: np.concatenate([values] * 40) for name, values in ROWS.items()}
    for coding in ("gzip", "deflate"):
        asked = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        same(client.infer("tensors", inputs_of(many), **asked, headers=headers()), many)


@check("texts in a list and in a column")
def texts_flat_and_in_columns() -> None:
    for shape in ([2], [2, 1]):
        found = client.infer("echo", texts("a", "ü", shape=shape), headers=headers()).as_numpy("output")
        assert found.tolist() == [b"a", "ü".encode()]


@check("64 asynchronous calls")
def many_at_once() -> None:
    waiting = [client.async_infer("echo", texts(str(number)), headers=headers()) for number in range(64)]
    assert [each.get_result().as_numpy("output")[0] for each in waiting] == [b"%d" % number for number in range(64)]


@check("a deadline in microseconds, and a priority")
def deadline() -> None:
    try:
        client.infer("slow", texts("a"), timeout=1000, priority=1, headers=headers())
    except InferenceServerException as late:
        if "deadline" not in str(late):
            raise
    else:
        raise AssertionError("a millisecond is not enough")


@check("errors as text")
def errors() -> None:
    for model, inputs, says in (
        ("nothing", texts("a"), "there is no model"),
        ("tensors", texts("a"), "there is no input 'input'"),
        ("echo", inputs_of({"input": ROWS["i"]}), "is INT64; echo takes BYTES"),
    ):
        try:
            client.infer(model, inputs, headers=headers())
        except InferenceServerException as refused:
            if says not in str(refused):
                raise
        else:
            raise AssertionError(says)


@check("statistics")
def statistics() -> None:
    (stats,) = client.get_inference_statistics("echo", headers=headers())["model_stats"]
    assert stats["inference_count"] >= stats["execution_count"] >= 0
    assert len(client.get_inference_statistics(headers=headers())["model_stats"]) > 1


main()
