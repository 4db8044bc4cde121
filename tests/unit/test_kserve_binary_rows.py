"""Rows of tensors for models that take bytes: what comes out as an array is what went in, and no value is looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from config.checks.input_types import input_type_problems
from config.schema import ModelSettings, Tensor
from tasks.errors import InvalidInput
from tasks.protocol.tensors import npy_header
from webapp.api.kserve.binary_rows import binary_rows
from webapp.api.kserve.datatypes import DATATYPES, raw_of
from webapp.api.kserve.signature import signature_of
from webapp.api.kserve.tensors import TensorHead, TensorValue, from_values, tensor_of
from webapp.encoded import Binary
from workers.executor.input_types.npy import array_of

MOST_ROWS = 100
TYPES = {
    "BOOL": "?", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3)


def rows(value: TensorValue, row_shape: list[int], input_type: str = "npy") -> list[Binary]:
    model = ModelSettings(
        name="m", source="m:M", input_type=input_type, inputs=[Tensor(value.name, value.datatype, row_shape)]
    )
    return signature_of(model, embeds=False).rows([value])


@pytest.mark.parametrize("datatype", TYPES)
@given(data=st.data())
def test_a_row_is_an_array_whatever_its_elements_are(datatype: str, data: st.DataObject) -> None:
    """NaN too, which has no JSON."""
    array = data.draw(arrays.arrays(TYPES[datatype], SHAPES))
    head = TensorHead("x", datatype, list(array.shape))
    made = rows(tensor_of(head, array.tobytes(), MOST_ROWS, as_bytes=True), [-1] * (array.ndim - 1))
    assert {each.content_type for each in made} <= {"application/x-npy"}
    again = [array_of(each.data) for each in made]
    assert [each.tobytes() for each in again] == [each.tobytes() for each in array]
    assert all(each.dtype == array.dtype and each.shape == array.shape[1:] for each in again)


@pytest.mark.parametrize("datatype", sorted(TYPES.keys() - {"FP16"}))
@given(data=st.data())
def test_json_makes_the_same_rows(datatype: str, data: st.DataObject) -> None:
    elements = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    array = data.draw(
        arrays.arrays(TYPES[datatype], SHAPES, elements=arrays.from_dtype(np.dtype(TYPES[datatype]), **elements))
    )
    head = TensorHead("x", datatype, list(array.shape))
    row_shape = [-1] * (array.ndim - 1)
    spelt = from_values(head, array.ravel().tolist(), MOST_ROWS, as_bytes=True)
    assert rows(spelt, row_shape) == rows(tensor_of(head, array.tobytes(), MOST_ROWS, as_bytes=True), row_shape)


def test_bf16_becomes_the_fp32_that_it_is() -> None:
    values = [1.0, -2.5, 0.0]
    raw = raw_of(DATATYPES["BF16"], values)
    (row,) = rows(tensor_of(TensorHead("x", "BF16", [1, 3]), raw, MOST_ROWS, as_bytes=True), [3])
    assert (array_of(row.data) == np.array(values, np.float32)).all()


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_elements_of_bytes_are_inputs_as_they_are(values: list[bytes]) -> None:
    head = TensorHead("x", "BYTES", [len(values)])
    value = tensor_of(head, raw_of(DATATYPES["BYTES"], values), MOST_ROWS, as_bytes=True)
    for kind in ("bytes", "npy", "arrow"):
        assert rows(value, [], kind) == [Binary(each) for each in values]


@given(st.integers(0, 4), st.integers(0, 9))
def test_rows_of_uint8_are_inputs_as_they_are(count: int, size: int) -> None:
    raw = bytes(range(count * size))
    value = tensor_of(TensorHead("x", "UINT8", [count, size]), raw, MOST_ROWS, as_bytes=True)
    assert [each.data for each in rows(value, [-1], "bytes")] == [raw[n * size : (n + 1) * size] for n in range(count)]


def test_a_row_of_one_value_may_come_as_a_list_of_one() -> None:
    for shape in ([2], [2, 1]):
        head = TensorHead("x", "INT8", shape)
        made = binary_rows(tensor_of(head, b"\1\2", MOST_ROWS, as_bytes=True), [], "npy")
        assert [array_of(each.data).tolist() for each in made] == [1, 2]


@pytest.mark.parametrize("raw", [b"", b"\0" * 7, b"\0" * 9])
def test_bytes_too_many_or_too_few_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="bytes of data"):
        tensor_of(TensorHead("x", "FP32", [2]), raw, MOST_ROWS, as_bytes=True)


def test_the_header_is_that_of_numpy() -> None:
    assert len(npy_header("<f4", (2, 3))) % 64 == 0
    assert npy_header("<f4", (2,)) == npy_of(np.zeros(2, np.float32))
    assert npy_header("|b1", ()) == npy_of(np.array(False))


def npy_of(array: np.ndarray) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()[: -array.nbytes]


@pytest.mark.parametrize(
    ("input_type", "inputs", "wrong"),
    [
        ("npy", [Tensor("a", "FP32", [2])], ""),
        ("npy", [Tensor("a", "BYTES")], ""),
        ("bytes", [Tensor("a", "UINT8", [-1])], ""),
        ("arrow", [Tensor("a", "BYTES")], ""),
        ("json", [Tensor("a", "FP32"), Tensor("b", "FP32")], ""),
        ("npy", [Tensor("a", "FP32"), Tensor("b", "FP32")], "must be one"),
        ("bytes", [Tensor("a", "FP32", [2])], "BYTES or UINT8"),
        ("npy", [Tensor("a", "BYTES", [2])], "shape = []"),
    ],
)
def test_inputs_that_such_a_model_cannot_have(input_type: str, inputs: list[Tensor], wrong: str) -> None:
    model = ModelSettings(name="m", source="m:M", input_type=input_type, inputs=inputs)
    found = [each.fix for each in input_type_problems(model)]
    assert (wrong in found[0]) if wrong else not found
