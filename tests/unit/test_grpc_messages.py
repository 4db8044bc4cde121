"""The protocol's messages and statuses, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InvalidInput, RateLimited
from webapp.api.kserve.datatypes import DATATYPES, raw_of
from webapp.api.kserve.tensors import TensorValue
from webapp.errors import STATUS_OF as HTTP
from webapp.grpc.messages import filled, infer_response, parameters_of, tensors_of, wanted_of
from webapp.grpc.proto import open_inference_pb2 as pb

Tensor = pb.ModelInferRequest.InferInputTensor
TYPED = [
    ("BOOL", "bool_contents", [True, False]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("UINT16", "uint_contents", [0, 65535]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("FP32", "fp32_contents", [0.5, -1.0]),
    ("FP64", "fp64_contents", [0.1, -1e300]),
    ("BYTES", "bytes_contents", ["é", ""]),
]


def request(*inputs: Any, **more: Any) -> Any:
    return pb.ModelInferRequest(model_name="m", inputs=inputs, **more)


@pytest.mark.parametrize(("datatype", "field", "values"), TYPED)
def test_contents_and_raw_bytes_are_the_same_tensor(datatype: str, field: str, values: list[Any]) -> None:
    sent = [each.encode() if isinstance(each, str) else each for each in values]
    typed = Tensor(name="x", datatype=datatype, shape=[2], contents=pb.InferTensorContents(**{field: sent}))
    raw = request(Tensor(name="x", datatype=datatype, shape=[2]))
    raw.raw_input_contents.append(raw_of(DATATYPES[datatype], values))
    assert tensors_of(request(typed), 9) == tensors_of(raw, 9) == [TensorValue("x", datatype, [2], values)]


CONTENTS = pb.InferTensorContents(int_contents=[1])


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            request(Tensor(name="x", datatype="INT32", shape=[1]), raw_input_contents=[b"", b""]),
            "2 tensors for 1 inputs",
        ),
        (
            request(Tensor(name="x", datatype="INT32", shape=[1], contents=CONTENTS), raw_input_contents=[b"\0" * 4]),
            "one of the two",
        ),
        (request(Tensor(name="x", datatype="FP32", shape=[1], contents=CONTENTS)), "belongs into fp32_contents"),
        (request(Tensor(name="x", datatype="FP16", shape=[1], contents=CONTENTS)), "send it in raw_input_contents"),
        (request(Tensor(name="x", datatype="FP31", shape=[1], contents=CONTENTS)), "there is no datatype"),
        (request(Tensor(name="x", datatype="INT32", shape=[2], contents=CONTENTS)), "1 elements of data"),
        (request(Tensor(name="x", datatype="INT32", shape=[-1], contents=CONTENTS)), "below 0"),
        (request(Tensor(name="x", datatype="INT32", shape=[2**62], contents=CONTENTS)), "at most 9"),
        (
            request(Tensor(name="x", datatype="INT8", shape=[1], contents=pb.InferTensorContents(int_contents=[128]))),
            "no INT8",
        ),
        (
            request(
                Tensor(name="x", datatype="BYTES", shape=[1], contents=pb.InferTensorContents(bytes_contents=[b"\xff"]))
            ),
            "not UTF-8",
        ),
        (
            request(
                Tensor(
                    name="x",
                    datatype="INT32",
                    shape=[1],
                    parameters={"shared_memory_region": pb.InferParameter(string_param="r")},
                )
            ),
            "shared memory is not offered",
        ),
    ],
)
def test_what_lies_is_refused(sent: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        tensors_of(sent, 9)


@pytest.mark.parametrize("shape", [[2**63 - 1], [1, 2**32, 2**31], [2], [0]], ids=str)
def test_a_shape_that_lies_is_refused_whatever_it_would_need(shape: list[int]) -> None:
    for datatype, raw in (("INT32", b"\0" * 4), ("BYTES", b"\1\0\0\0a")):
        with pytest.raises(InvalidInput, match="x"):
            tensors_of(request(Tensor(name="x", datatype=datatype, shape=shape), raw_input_contents=[raw]), 9)


@pytest.mark.parametrize("raw", [b"\x09\0\0\0a", b"\xff\xff\xff\xffa", b"\1\0\0", b"\1\0\0\0\xff", b""], ids=repr)
def test_a_length_that_lies_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="x"):
        tensors_of(request(Tensor(name="x", datatype="BYTES", shape=[1]), raw_input_contents=[raw]), 9)


@pytest.mark.parametrize(("datatype", "field"), [("FP32", "fp32_contents"), ("FP64", "fp64_contents")])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_no_number_for_is_refused_wherever_it_stands(datatype: str, field: str, wrong: float) -> None:
    # Python's `min` and `max` do not see a NaN behind a number.
    for values in ([1.0, wrong], [wrong, 1.0]):
        contents = pb.InferTensorContents(**{field: values})
        with pytest.raises(InvalidInput, match="NaN and infinity cannot be sent"):
            tensors_of(request(Tensor(name="x", datatype=datatype, shape=[2], contents=contents)), 9)


@given(st.binary(max_size=200))
def test_whatever_bytes_are_a_message_they_are_tensors_or_refused(raw: bytes) -> None:
    sent = pb.ModelInferRequest()
    try:
        sent.ParseFromString(raw)
    except Exception:  # noqa: BLE001 - gRPC refuses it
        return
    try:
        assert len(tensors_of(sent, 9)) == len(sent.inputs)
    except InvalidInput:
        return


def test_parameters_and_outputs_are_read_as_in_json() -> None:
    given_ = {
        "timeout": pb.InferParameter(int64_param=5),
        "a": pb.InferParameter(string_param="b"),
        "c": pb.InferParameter(),
    }
    assert parameters_of(given_) == {"timeout": 5, "a": "b"}
    asked = request(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="o")])
    assert wanted_of(asked).named == {"o": False}
    assert wanted_of(request()).named == {}


def test_an_answer_is_raw() -> None:
    answer = infer_response(
        "m", "2", "id", [TensorValue("o", "FP16", [1], [1.0]), TensorValue("s", "BYTES", [1], ["é"])]
    )
    assert list(answer.raw_output_contents) == [b"\x00\x3c", b"\2\0\0\0" + "é".encode()]
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("o", "FP16", [1]),
        ("s", "BYTES", [1]),
    ]


def test_a_document_fills_the_message_of_its_names() -> None:
    config = {"name": "m", "input": [{"name": "x", "data_type": "TYPE_BF16", "dims": [1], "reshape": {"shape": []}}]}
    message = filled(pb.ModelConfig(), config)
    assert (message.input[0].data_type, message.input[0].HasField("reshape")) == (14, True)


def test_every_error_code_has_a_status() -> None:
    pytest.importorskip("grpc", reason="needs requirements-grpc.txt")
    from webapp.grpc.statuses import STATUS_OF, trailing

    assert STATUS_OF.keys() == HTTP.keys()
    assert dict(trailing(RateLimited("slow down", 1.5), "r")) == {
        "x-request-id": "r",
        "bunch-error": "RATE_LIMITED",
        "retry-after-ms": "1500",
    }


def test_numbers_of_fields_are_the_protocols() -> None:
    """A few that clients depend on most; a client of Triton's is asked in `tests/clients`."""
    numbers = {each.name: each.number for each in pb.ModelInferRequest.DESCRIPTOR.fields}
    assert numbers == {
        "model_name": 1, "model_version": 2, "id": 3, "parameters": 4, "inputs": 5, "outputs": 6,
        "raw_input_contents": 7,
    }  # fmt: skip
    assert pb.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number == 6
    assert pb.DESCRIPTOR.package == "inference"
    assert pb.InferParameter.DESCRIPTOR.fields_by_name["int64_param"].type == FieldDescriptor.TYPE_INT64


def test_elements_of_bytes_need_not_be_text_where_a_model_takes_bytes() -> None:
    typed = pb.ModelInferRequest.InferInputTensor(name="x", datatype="BYTES", shape=[2])
    typed.contents.bytes_contents.extend([b"\xff", b""])
    raw = pb.ModelInferRequest.InferInputTensor(name="x", datatype="BYTES", shape=[2])
    framed = b"\1\0\0\0\xff\0\0\0\0"
    for each in (pb.ModelInferRequest(inputs=[typed]), pb.ModelInferRequest(inputs=[raw], raw_input_contents=[framed])):
        assert tensors_of(each, 9, as_bytes=True) == [TensorValue("x", "BYTES", [2], [b"\xff", b""])]
        with pytest.raises(InvalidInput, match="UTF-8"):
            tensors_of(each, 9)
