"""Tensors of the Open Inference Protocol: what is encoded is decoded as it was, and what lies is refused."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.schema import ModelSettings, Tensor
from tasks.errors import InferenceFailed, InvalidInput
from webapp.api.kserve.datatypes import DATATYPES, checked, fits, raw_of, values_of
from webapp.api.kserve.shapes import flat_data, flattened, rows_of
from webapp.api.kserve.signature import Signature, signature_of
from webapp.api.kserve.tensors import (
    InferHead,
    TensorHead,
    TensorValue,
    WantedOutput,
    answer_body,
    split,
    tensors_of,
    wanted_outputs,
)

MOST_ROWS = 1000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def elements(name: str) -> st.SearchStrategy[Any]:
    datatype = DATATYPES[name]
    if datatype.kind is str:
        return TEXT
    if datatype.kind is bool:
        return st.booleans()
    if datatype.kind is int:
        return st.integers(int(datatype.low), int(datatype.high))
    width = {"FP16": 16, "BF16": 32, "FP32": 32, "FP64": 64}[name]
    floats = st.floats(allow_nan=False, allow_infinity=False, width=width)
    return floats.map(upper_half) if name == "BF16" else floats


def upper_half(value: float) -> float:
    """As old clients cut an FP32: always a BF16."""
    cut: float = struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0]
    return cut


def head(name: str = "x", datatype: str = "INT32", shape: list[int] | None = None, **more: Any) -> TensorHead:
    return TensorHead(name, datatype, [1] if shape is None else shape, **more)


@pytest.mark.parametrize("name", DATATYPES)
@settings(max_examples=30)
@given(data=st.data())
def test_raw_bytes_come_back_as_they_were(name: str, data: st.DataObject) -> None:
    datatype = DATATYPES[name]
    values = data.draw(st.lists(elements(name), max_size=6))
    assert fits(datatype, values)
    raw = raw_of(datatype, values)
    assert values_of(datatype, raw, len(values), "x") == values
    assert raw_of(datatype, values_of(datatype, raw, len(values), "x")) == raw


@pytest.mark.parametrize("name", [name for name, each in DATATYPES.items() if not each.only_raw])
@settings(max_examples=30)
@given(data=st.data())
def test_json_and_binary_data_are_the_same_tensor(name: str, data: st.DataObject) -> None:
    datatype = DATATYPES[name]
    shape = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    values = data.draw(st.lists(elements(name), min_size=math.prod(shape), max_size=math.prod(shape)))
    nested = rows_of(values, shape, shape[1:])
    raw = raw_of(datatype, values)
    heads = [
        head("flat", name, shape, data=values),
        head("nested", name, shape, data=nested),
        head("binary", name, shape, parameters={"binary_data_size": len(raw)}),
    ]
    flat, deep, binary = tensors_of(heads, memoryview(raw), MOST_ROWS)
    assert flat.values == deep.values == binary.values == values
    assert flattened(nested, [-1] * (len(shape) - 1), "x")[0] == values


@given(st.binary(max_size=64), st.integers(0, 2**63), st.sampled_from(sorted(DATATYPES)))
def test_whatever_bytes_come_they_are_values_or_refused(raw: bytes, count: int, name: str) -> None:
    try:
        values = values_of(DATATYPES[name], raw, count, "x")
    except InvalidInput:
        return
    assert len(values) == count
    assert fits(DATATYPES[name], values)


@given(
    st.lists(
        st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), TEXT, st.lists(st.integers(), max_size=2)),
        max_size=4,
    )
)
def test_whatever_json_comes_it_is_values_or_refused(data: list[Any]) -> None:
    for name, datatype in DATATYPES.items():
        try:
            values = checked(datatype, flat_data(data, [len(data)], "x"), "x")
        except InvalidInput:
            continue
        assert values_of(datatype, raw_of(datatype, values), len(data), name) is not None


LONG = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("one", "raw", "says"),
    [
        (head(shape=[2], parameters={"binary_data_size": 4}), b"\0" * 4, "x: 4 bytes of data, but its shape has 2"),
        (head(parameters={"binary_data_size": 8}), b"\0" * 4, "binary_data_size is 8, but only 4 bytes follow"),
        (head(parameters={"binary_data_size": 4}), b"", "Inference-Header-Content-Length must say where it ends"),
        (head(parameters={"binary_data_size": 4}), b"\0" * 5, "1 bytes follow the last input"),
        (head(parameters={"binary_data_size": -4}), b"", "must be a number of bytes"),
        (head(parameters={"binary_data_size": True}), b"\0", "must be a number of bytes"),
        (head(data=[1], parameters={"binary_data_size": 4}), b"\0" * 4, "send one of the two"),
        (head(), b"", "has no data"),
        (head(parameters={"shared_memory_region": "a"}), b"", "shared memory is not offered"),
        (head(datatype="FP31", data=[1]), b"", "there is no datatype 'FP31'"),
        (head(shape=[2**63], data=[]), b"", "at most 1000"),
        (head(shape=[1, 2**62, 0], data=[]), b"", "more than 100,000 lists"),
        (head(shape=[1, 2**62, 2], parameters={"binary_data_size": 0}), b"", "more than 100,000 lists"),
        (head(shape=[1, 2**62], parameters={"binary_data_size": 0}), b"", "0 bytes of data, but its shape has"),
        (head(shape=[1, 2**62], datatype="BYTES", parameters={"binary_data_size": 4}), b"\0" * 4, "are too few"),
        (head(shape=[1] * 33, data=[1]), b"", "more than 32 dimensions"),
        (head(shape=[], data=[1]), b"", "the first dimension is the number of rows"),
        (head(shape=[-1], data=[1]), b"", "below 0"),
        (head(shape=[2], data=[1]), b"", "1 elements of data, but its shape has 2"),
        (head(shape=[2, 2], data=[[1, 2], [3]]), b"", "nested otherwise"),
        (head(shape=[2, 2], data=[[1, 2], 3]), b"", "nested otherwise"),
        (head(shape=[1, 1], data=[[1], [2]]), b"", "2 rows of data"),
        (head(data=[[[1]]], shape=[1, 1]), b"", "no INT32"),
        (head(data=[2**31]), b"", "no INT32"),
        (head(data=[True]), b"", "no INT32"),
        (head(data=[1.0]), b"", "no INT32"),
        (head(datatype="BOOL", data=[1]), b"", "no BOOL"),
        (head(datatype="FP32", data=[1e39]), b"", "no FP32"),
        (head(datatype="FP64", data=[10**400]), b"", "no FP64"),
        (head(datatype="FP16", data=[1.0]), b"", "no form in JSON"),
        (head(datatype="FP32", parameters={"binary_data_size": 4}), b"\0\0\xc0\x7f", "NaN and infinity"),
        (head(datatype="BF16", parameters={"binary_data_size": 2}), b"\x80\x7f", "NaN and infinity"),
        (head(datatype="BYTES", parameters={"binary_data_size": 5}), LONG + b"a", "is said to have 4294967295 bytes"),
        (head(datatype="BYTES", parameters={"binary_data_size": 5}), b"\1\0\0\0\xff", "is not UTF-8"),
        (head(datatype="BYTES", parameters={"binary_data_size": 5}), b"\0\0\0\0a", "1 bytes of data are left"),
        (
            head(datatype="BYTES", shape=[2], parameters={"binary_data_size": 8}),
            b"\4\0\0\0abcd",
            "ends before element 1",
        ),
    ],
)
def test_what_lies_is_refused_with_what_is_wrong(one: TensorHead, raw: bytes, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tensors_of([one], memoryview(raw), MOST_ROWS)
    assert says in str(refused.value)


@pytest.mark.parametrize("length", ["-1", "1e1", "", "٣", "9" * 5000, "3"])
def test_a_header_that_cannot_be_its_length_is_refused(length: str) -> None:
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        split(b"{}", length)


def test_the_header_says_where_the_json_ends() -> None:
    assert split(b"{}abc", "2") == (b"{}", memoryview(b"abc"))
    assert split(b"{}", None) == (b"{}", memoryview(b""))


def test_bf16_is_rounded_to_the_nearest_and_stays_finite() -> None:
    bf16 = DATATYPES["BF16"]
    assert raw_of(bf16, [1.0, -2.0, 1.00390625, 1.01171875]) == struct.pack("<4H", 0x3F80, 0xC000, 0x3F80, 0x3F82)
    assert values_of(bf16, raw_of(bf16, [bf16.high, bf16.low]), 2, "x") == [bf16.high, bf16.low]


SIGNATURE = Signature(
    "m", "1", [Tensor("a", "FP32", [2]), Tensor("b", "BYTES")], [Tensor("s", "INT64"), Tensor("v", "FP32", [-1, 2])]
)


def tensor(name: str, datatype: str, shape: list[int], values: list[Any]) -> TensorValue:
    return TensorValue(name, datatype, shape, values)


A, B = tensor("a", "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]), tensor("b", "BYTES", [2], ["x", "y"])


def test_a_row_of_several_inputs_is_a_dict_and_of_one_its_value() -> None:
    assert SIGNATURE.rows([B, A]) == [{"a": [1.0, 2.0], "b": "x"}, {"a": [3.0, 4.0], "b": "y"}]
    plain = signature_of(ModelSettings(name="m", source="a:b"), embeds=False)
    assert plain.rows([tensor("input", "BYTES", [2], ["x", "y"])]) == ["x", "y"]
    # As Triton's own clients send a batch of texts.
    assert plain.rows([tensor("input", "BYTES", [2, 1], ["x", "y"])]) == ["x", "y"]
    assert plain.rows([tensor("input", "BYTES", [0], [])]) == []


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([A], "b: is missing"),
        ([A, B, B], "twice"),
        ([A, B, tensor("c" * 999, "BYTES", [2], ["", ""])], "there is no input 'cccc"),
        ([A, tensor("b", "BYTES", [1], ["x"])], "the same for all inputs"),
        ([tensor("a", "FP64", [2, 2], A.values), B], "a: is FP64; m takes FP32"),
        ([tensor("a", "FP32", [2, 2, 1], A.values), B], "m takes [-1, 2]"),
        ([tensor("a", "FP32", [4, 1], A.values), B], "m takes [-1, 2]"),
        ([A, tensor("b", "BYTES", [2, 2], ["x"] * 4)], "m takes [-1]"),
    ],
)
def test_inputs_that_are_not_as_declared_are_refused(tensors: list[TensorValue], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SIGNATURE.rows(tensors)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 200


def test_outputs_have_the_shape_of_all_rows() -> None:
    rows = [{"s": 1, "v": [[1, 2.5]]}, {"s": 2, "v": [[3.0, 4.0]]}]
    s, v = SIGNATURE.tensors(rows, SIGNATURE.outputs)
    assert (s.shape, s.values) == ([2], [1, 2])
    assert (v.shape, v.values) == ([2, 1, 2], [1, 2.5, 3.0, 4.0])
    # Without rows there is nothing to see of a dimension that varies.
    assert [each.shape for each in SIGNATURE.tensors([], SIGNATURE.outputs)] == [[0], [0, 0, 2]]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([1], "must be a dict"),
        ({"s": 1}, "has no v"),
        ({"s": 1.5, "v": []}, "is not INT64"),
        ({"s": 1, "v": [1, 2]}, "fewer dimensions"),
        ({"s": 1, "v": [[1, 2, 3]]}, "has 3 where it declares 2"),
        ({"s": 1, "v": [[1, 2], [1]]}, "differ in shape"),
        ({"s": 1, "v": [["a", "b"]]}, "is not FP32"),
    ],
)
def test_outputs_that_are_not_as_declared_are_the_models_error(row: Any, says: str) -> None:
    with pytest.raises(InferenceFailed, match=says):
        SIGNATURE.tensors([row], SIGNATURE.outputs)


def test_a_model_without_declarations_gives_text_or_an_embedding() -> None:
    model = ModelSettings(name="m", source="a:b")
    anything = signature_of(model, embeds=False)
    (text,) = anything.tensors(["é", {"a": [1]}, None, 1.5], anything.outputs)
    assert (text.datatype, text.shape, text.values) == ("BYTES", [4], ["é", '{"a":[1]}', "null", "1.5"])
    embedding = signature_of(model, embeds=True)
    (vectors,) = embedding.tensors([[0.5, 1.0]], embedding.outputs)
    assert (vectors.datatype, vectors.shape) == ("FP32", [1, 2])


def test_outputs_come_in_the_form_that_is_asked_for() -> None:
    named = InferHead(
        [],
        parameters={"binary_data_output": True},
        outputs=[WantedOutput("v", {"binary_data": False}), WantedOutput("s")],
    )
    wanted = SIGNATURE.wanted(wanted_outputs(named))
    assert [(each.name, binary) for each, binary in wanted] == [("v", False), ("s", True)]
    tensors = SIGNATURE.tensors([{"s": 7, "v": [[1.0, 2.0]]}], [each for each, _ in wanted])
    body, length = answer_body({"model_name": "m"}, tensors, [binary for _, binary in wanted])
    document = json.loads(body[:length])
    assert document == {
        "model_name": "m",
        "outputs": [
            {"name": "v", "datatype": "FP32", "shape": [1, 1, 2], "data": [1.0, 2.0]},
            {"name": "s", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
        ],
    }
    assert body[length:] == struct.pack("<q", 7)
    assert SIGNATURE.wanted(wanted_outputs(InferHead([]))) == [(each, False) for each in SIGNATURE.outputs]
    _, length = answer_body({}, [], [])
    assert length == 0


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (InferHead([], outputs=[WantedOutput("t")]), "there is no output 't'"),
        (InferHead([], outputs=[WantedOutput("s"), WantedOutput("s")]), "twice"),
        (InferHead([], outputs=[WantedOutput("s", {"binary_data": 1})]), "true or false"),
        (InferHead([], parameters={"binary_data_output": "yes"}), "true or false"),
        (InferHead([], outputs=[WantedOutput("s", {"classification": 3})]), "classification is not offered"),
        (InferHead([], outputs=[WantedOutput("s", {"shared_memory_region": "r"})]), "shared memory is not offered"),
    ],
)
def test_outputs_that_there_are_not_are_refused(wanted: InferHead, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        SIGNATURE.wanted(wanted_outputs(wanted))


def test_a_datatype_that_is_raw_only_is_not_written_as_json() -> None:
    with pytest.raises(InvalidInput, match="ask for it as binary data"):
        answer_body({}, [tensor("h", "FP16", [1], [1.0])], [False])
