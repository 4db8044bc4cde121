"""Outputs of numbers in binary form: what the executor makes of them, and the tensor that it becomes in an answer."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from batching.request import Ok
from bunch import Output
from config.schema import ModelSettings, Tensor
from tasks.errors import InferenceFailed
from tasks.protocol.tensors import CODES, DESCRIPTIONS, npy_header, read_npy
from webapp.api.kserve.binary_outputs import form_of, raw_column
from webapp.api.kserve.datatypes import DATATYPES
from webapp.api.kserve.signature import Signature, signature_of
from webapp.api.kserve.tensors import TensorValue, answer_body, encoded
from workers.executor.output_forms import take_form
from workers.executor.outputs import encode_output, outcome_of
from workers.executor.tensors import as_tensor

NUMBERS = st.one_of(
    st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=1)
)
KINDS = st.sampled_from(
    ["?", "<i1", "<i2", ">i4", "<i8", "<u1", "<u4", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8", "<U1"]
)


def signature(datatype: str, shape: list[int]) -> Signature:
    return signature_of(ModelSettings(name="m", source="a:b", outputs=[Tensor("o", datatype, shape)]), embeds=False)


def by_json(of: Signature, rows: list[Any]) -> bytes | None:
    """The raw tensor by way of JSON, as it is without a form; None if it is refused."""
    texts = [encode_output(each) for each in rows]
    if not all(isinstance(each, bytes) for each in texts):
        return None
    try:
        (tensor,) = of.tensors([msgspec.json.decode(each) for each in texts], of.outputs)
        return encoded(tensor)
    except InferenceFailed:
        return None


def in_binary(of: Signature, rows: list[Any]) -> bytes | None:
    """The same where the executor is asked for the form."""
    found: list[Any] = []
    for each in rows:
        made = as_tensor(each, of.outputs[0].datatype)
        if made is None:
            text = encode_output(each)
            if not isinstance(text, bytes):
                return None
            made = msgspec.json.decode(text)
        found.append(made)
    try:
        (tensor,) = of.tensors(found, of.outputs, packed=True)
    except InferenceFailed:
        return None
    assert tensor.shape[0] == len(rows)
    return bytes(encoded(tensor))


@given(
    datatype=st.sampled_from([*CODES]),
    rows=st.lists(
        st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), st.lists(st.lists(NUMBERS, max_size=2), max_size=2))
    ),
    depth=st.integers(0, 2),
)
def test_lists_are_what_they_are_by_way_of_json(datatype: str, rows: list[Any], depth: int) -> None:
    of = signature(datatype, [-1] * depth)
    assert in_binary(of, rows) == by_json(of, rows)


@given(
    datatype=st.sampled_from([*CODES]),
    array=KINDS.flatmap(
        lambda kind: npst.arrays(kind, npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3))
    ),
)
def test_arrays_are_what_they_are_by_way_of_json(datatype: str, array: Any) -> None:
    of = signature(datatype, [-1] * (array.ndim - 1))
    rows = [array[n] for n in range(len(array))]
    # JSON has no way for what is not finite.
    if array.dtype.kind not in "fc" or np.isfinite(array).all():
        assert in_binary(of, rows) == by_json(of, rows)


@pytest.mark.parametrize("given", [[1.5, math.nan, -math.inf], np.array([1.5, math.nan, -math.inf]), "both"])
def test_nan_and_infinity_have_a_binary_form(given: Any) -> None:
    values = np.array([1.5, math.nan, -math.inf], np.float32)
    of = signature("FP32", [3])
    rows = [values, values.tolist()] if isinstance(given, str) else [given]
    assert in_binary(of, rows) == values.tobytes() * len(rows)


@pytest.mark.parametrize("given", [1e39, -1e39, [1e39], np.array(1e39)], ids=repr)
def test_what_is_too_large_does_not_become_infinite(given: Any) -> None:
    assert as_tensor(given, "FP32") is None


class Odd:
    """A tensor of another library, on a device or with a gradient."""

    shape = (2,)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("call .cpu() first")

    def tolist(self) -> list[float]:
        return [1.0, 2.0]


def test_a_tensor_that_is_no_array_is_read_as_a_list() -> None:
    assert in_binary(signature("FP32", [2]), [Odd()]) == np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"no file", "is not FP32"),
        (npy_header("<f8", (2,)) + bytes(16), "is not FP32"),
        (npy_header("<f4", (2,)) + bytes(7), "cut off"),
        (npy_header("<f4", ()) + bytes(4), "fewer dimensions"),
        (npy_header("<f4", (1, 2)) + bytes(8), "is not FP32"),
        (npy_header("<f4", (3,)) + bytes(12), "where it declares"),
    ],
)
def test_a_file_of_something_else_is_the_models_error(row: bytes, words: str) -> None:
    with pytest.raises(InferenceFailed, match=words):
        raw_column(Tensor("o", "FP32", [2]), [row])


def test_rows_of_several_shapes_are_refused() -> None:
    rows = [npy_header("<f4", (n,)) + bytes(4 * n) for n in (1, 2)]
    with pytest.raises(InferenceFailed, match="differ in shape"):
        raw_column(Tensor("o", "FP32", [-1]), rows)


def test_only_a_single_output_of_numbers_that_is_all_binary_has_a_form() -> None:
    number, text = Tensor("o", "FP32", [-1]), Tensor("t", "BYTES")
    assert form_of([number], [True]) == "FP32"
    assert not form_of([number], [False])
    assert not form_of([number, number], [True, True])
    assert not form_of([text], [True])
    assert not form_of([Tensor("o", "BF16", [-1])], [True])
    assert [bool(form_of([Tensor("o", "FP32", shape)], [True])) for shape in ([], [1], [4, 4], [17], [4, -1])] == [
        *(False, False, False, True, True)
    ]


@pytest.mark.parametrize("few", [1, 2.5, True, [1, 2], np.float32(0.5), np.arange(3), 10**400, [10**400]], ids=str)
def test_few_numbers_are_soonest_json(few: Any) -> None:
    made = take_form({"$output": "FP64"}, packs=False)(few)  # type: ignore[misc]
    assert encode_output(made) == encode_output(few)
    assert type(made) in {int, float, bool, list}


@pytest.mark.parametrize("many", [np.arange(17), list(range(17)), [[1]], math.nan, [math.inf], np.array([math.nan])])
def test_more_are_a_file_which_is_an_output_of_bytes(many: Any) -> None:
    made = outcome_of(take_form({"$output": "FP64"}, packs=False)(many))  # type: ignore[misc]
    assert isinstance(made, Ok)
    assert made.metadata == b'"content_type":"application/x-npy","output_type":"bytes"'
    found = np.load(io.BytesIO(base64.b64decode(made.output[1:-1])))
    assert np.array_equal(found, np.asarray(many, np.float64), equal_nan=True)


def test_the_metadata_of_an_output_stays_with_its_file() -> None:
    made = outcome_of(take_form({"$output": "FP32"}, packs=False)(Output(list(range(20)), {"tokens_used": 3})))  # type: ignore[misc]
    assert isinstance(made, Ok)
    assert made.metadata == b'"tokens_used":3,"content_type":"application/x-npy","output_type":"bytes"'


def test_an_answer_has_its_bytes_behind_the_json() -> None:
    raw = np.arange(4, dtype=np.float32).tobytes()
    body, length = answer_body({}, [TensorValue("o", "FP32", [2, 2], [], raw)], [True])
    assert body[length:] == raw
    (described,) = msgspec.json.decode(body[:length])["outputs"]
    assert described == {"name": "o", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}


@given(array=npst.arrays(st.sampled_from([*DESCRIPTIONS.values()]), npst.array_shapes(min_dims=0, min_side=0)))
def test_files_are_numpys_own(array: Any) -> None:
    file = io.BytesIO()
    np.save(file, array)
    raw = file.getvalue()
    found = read_npy(raw)
    assert found is not None
    assert (found.description, found.shape, bytes(found.data)) == (array.dtype.str, array.shape, array.tobytes())
    assert npy_header(found.description, found.shape) + found.data == raw


@given(raw=st.binary(max_size=40), head=st.booleans())
def test_anything_else_is_no_file(raw: bytes, head: bool) -> None:
    assert read_npy((npy_header("<f4", (2,))[:10] if head else b"") + raw) is None


def test_each_datatype_has_the_same_elements_on_both_sides() -> None:
    assert {name: each.code for name, each in DATATYPES.items() if name in CODES} == CODES
    assert DATATYPES.keys() - CODES.keys() == {"BYTES", "BF16"}
    assert {name: np.dtype(each).itemsize for name, each in DESCRIPTIONS.items()} == {
        name: DATATYPES[name].size for name in CODES
    }
