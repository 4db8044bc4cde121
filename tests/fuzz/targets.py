"""The formats: for each some bytes that are right, and what reads them.

A target takes bytes and returns whether they were read. It raises nothing if they were refused as a caller's mistake,
and `AssertionError` if what was read is not what another reader makes of it.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from config.model_schema import InputType
from config.schema import ModelSettings, Settings, Tensor
from tasks.errors import BunchError
from tasks.protocol.binary import wrapped
from webapp.api.kserve.signature import signature_of
from webapp.api.kserve.tensors import InferHead, split, tensors_of
from webapp.binary_inputs import BinaryInputs
from webapp.encoded import Binary
from webapp.errors import ApiError
from webapp.inference_body import _of_parts
from webapp.parsing import InferenceBody, as_json, decoded
from webapp.request import HttpRequest
from workers.executor.input_types import reader_of
from workers.executor.input_types.arrow import table_of
from workers.executor.input_types.npy import array_of
from workers.models import InvalidInput

MOST_BYTES = 64 * 1024 * 1024
_MOST_JSON = 1024 * 1024


@dataclass(frozen=True)
class Target:
    seeds: Sequence[bytes]
    run: Callable[[bytes], bool]


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _run_npy(raw: bytes) -> bool:
    try:
        found = array_of(raw)
    except ValueError:
        return False
    again = np.load(io.BytesIO(raw), allow_pickle=False)
    assert found.dtype == again.dtype
    assert found.shape == again.shape
    assert found.tobytes() == again.tobytes()
    return True


def _stream(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=3)
    return file.getvalue()


_TABLES = [
    pa.table({"a": [1, None, 3, 4], "b": ["x", None, "yy", ""], "c": [1.5, 2.5, None, float("nan")]}),
    pa.table(
        {
            "list": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int32())),
            "struct": [{"p": 1, "q": "r"}] * 4,
            "map": pa.array([[("k", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
            "dictionary": pa.array(["u", "v", "u", None]).dictionary_encode(),
            "binary": [b"\0", b"", None, b"\xff"],
        }
    ),
    pa.table({"fixed": pa.array([[1, 2]] * 4, pa.list_(pa.int8(), 2)), "null": pa.nulls(4), "bool": [True] * 4}),
    pa.table({"large": pa.array(["a", "b"], pa.large_string()), "when": pa.array([1, 2], pa.timestamp("us"))}),
    pa.table({"a": pa.array([], pa.int64())}),
    pa.table({}),
]


def _run_arrow(raw: bytes) -> bool:
    try:
        found = table_of(raw)
    except ValueError:
        return False
    # Whatever a model does with it must not end the process, nor take more memory than was counted.
    assert found.num_rows <= 8 * max(len(raw), MOST_BYTES)
    try:
        found.to_pydict()
    except OverflowError:
        # A moment that Arrow has and Python has not, told in several ways: any number of Arrow's is one of Python's.
        pass
    except ValueError as error:
        # Another year, or a part of a microsecond.
        if not any(each in str(error) for each in ("out of range", "Nanosecond")):
            raise
    assert found.combine_chunks().num_rows == found.num_rows
    return True


def _form(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    body = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), head.encode(), data) for head, data in parts)
    return body + b"--%b--\r\n" % boundary.encode()


_BOUNDARY = "xYz"
_CALL = HttpRequest({"CONTENT_TYPE": f"multipart/form-data; boundary={_BOUNDARY}"})
_INPUT = 'Content-Disposition: form-data; name="input"; filename="a.png"\r\nContent-Type: image/png'
_FIELD = 'Content-Disposition: form-data; name="{}"'


def _run_multipart(raw: bytes) -> bool:
    try:
        found = _of_parts(_CALL, raw, {}, _MOST_JSON)
    except (ApiError, BunchError):
        return False
    assert isinstance(found, InferenceBody)
    if isinstance(found.input, Binary):
        assert found.input.data in raw
    return True


def _tensors(document: dict[str, Any], *raw: bytes) -> bytes:
    """A body with the length of its JSON in front, which stands in a header."""
    head = json.dumps(document).encode()
    return struct.pack("<I", len(head)) + head + b"".join(raw)


def _described(datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    return {"inputs": [tensor]}


_KINDS: list[tuple[InputType, Tensor]] = [
    ("bytes", Tensor("x", "BYTES")),
    ("bytes", Tensor("x", "UINT8", [-1])),
    ("npy", Tensor("x", "FP32", [-1, 2])),
    ("npy", Tensor("x", "BF16", [-1])),
    ("json", Tensor("x", "BYTES")),
    ("json", Tensor("x", "FP32", [-1, 2])),
]
_SIGNATURES = [
    signature_of(ModelSettings(name="m", source="m:M", input_type=kind, inputs=[tensor]), embeds=False)
    for kind, tensor in _KINDS
]
_infer_head = msgspec.json.Decoder(InferHead)


def _run_kserve(raw: bytes) -> bool:
    length, body = str(int.from_bytes(raw[:4], "little")), raw[4:]
    taken = False
    for signature in _SIGNATURES:
        try:
            text, behind = split(body, length)
            head = decoded(text, _infer_head)
            rows = signature.rows(tensors_of(head.inputs, behind, 1000, as_bytes=signature.takes_bytes))
        except (ApiError, BunchError):
            continue
        taken = True
        if signature.input_type == "npy":
            for each in rows:
                array_of(each.data)
    return taken


_MODELS = {kind: ModelSettings(name=kind, source="m:M", input_type=kind) for kind in ("json", "bytes", "npy", "arrow")}
_BINARY = BinaryInputs(Settings(models=_MODELS, default_model="json"))
_inference = msgspec.json.Decoder(InferenceBody)
_read = reader_of("bytes")


def _run_base64(raw: bytes) -> bool:
    """A body of JSON, and the input of a message of any Celery client."""
    try:
        found: Any = _read(raw, False)
        assert isinstance(found, bytes)
    except (InvalidInput, msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    try:
        value = _BINARY.encoded("bytes", decoded(raw, _inference).input, as_json)
    except (ApiError, BunchError):
        return found is not None
    assert isinstance(value, Binary)
    # What goes to the queue is what came.
    assert _read(wrapped(value.data), False) == value.data
    text = json.loads(raw)["input"]
    text = text["$base64"] if isinstance(text, dict) else text.partition(",")[2]
    assert base64.b64decode(text, validate=True) == value.data
    return True


_PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
_IN_JSON = wrapped(_PNG)
TARGETS: dict[str, Target] = {
    "npy": Target(
        [
            *map(_npy, (np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4).reshape(2, 2).T, np.zeros((0, 3)))),
            *map(_npy, (np.array(5), np.array(["ab", "c"]), np.zeros(2, [("a", "<i4"), ("b", "f8", (2,))]))),
        ],
        _run_npy,
    ),
    "arrow": Target(
        [_stream(each, compression=how) for each in _TABLES for how in (None, "zstd", "lz4")],
        _run_arrow,
    ),
    "multipart": Target(
        [
            _form(_BOUNDARY, (_INPUT, _PNG), (_FIELD.format("request"), b'{"model": "m", "timeout_ms": 5}')),
            _form(_BOUNDARY, (_FIELD.format("parameters"), b'{"a": [1]}'), (_FIELD.format("input"), _PNG)),
            _form(_BOUNDARY, (_FIELD.format("input") + "\r\nContent-Type: application/json", b'{"a": 1}')),
        ],
        _run_multipart,
    ),
    "kserve": Target(
        [
            _tensors(_described("BYTES", [2], 11), b"\3\0\0\0abc\0\0\0\0"),
            _tensors(_described("UINT8", [2, 3], 6), b"abcdef"),
            _tensors(_described("FP32", [1, 3, 2], 24), struct.pack("<6f", *range(6))),
            _tensors(_described("BF16", [2, 2], 8), b"\x80\x3f" * 4),
            _tensors({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}),
        ],
        _run_kserve,
    ),
    "base64": Target(
        [
            _IN_JSON,
            b'{"input":%b,"model":"m"}' % _IN_JSON,
            b'{"input":"data:image/png;base64,%b"}' % base64.b64encode(_PNG),
            b'\t{"__type__":"bytes","__value__":"%b"}' % base64.b64encode(_PNG),
        ],
        _run_base64,
    ),
}
