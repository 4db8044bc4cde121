"""The protocol's messages ⇄ the tensors that the REST endpoints use. Pure.

ModelInferRequest ──tensors_of──▶ [TensorValue] …  [TensorValue] ──infer_response──▶ ModelInferResponse
the documents of REST ──filled──▶ metadata, configuration, statistics, index
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import ParseDict

from tasks.errors import InvalidInput
from webapp.api.kserve.datatypes import DATATYPES, raw_of
from webapp.api.kserve.tensors import (
    InferHead,
    TensorHead,
    TensorValue,
    Wanted,
    WantedOutput,
    encoded,
    from_values,
    refuse_shared_memory,
    tensor_of,
    wanted_outputs,
)
from webapp.grpc.proto import open_inference_pb2 as pb

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_FLOATS = frozenset({"fp32_contents", "fp64_contents"})


def filled(message: Any, document: Mapping[str, Any]) -> Any:
    """Fill a message from a document with the same names."""
    return ParseDict(document, message)


def tensors_of(request: Any, most_rows: int, *, as_bytes: bool = False) -> list[TensorValue]:
    """Read all inputs of a request, `as_bytes` for a model that takes those. Raises InvalidInput."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidInput(f"raw_input_contents: {len(raw)} tensors for {len(request.inputs)} inputs")
    tensors: list[TensorValue] = []
    for at, each in enumerate(request.inputs):
        head = TensorHead(each.name, each.datatype, list(each.shape))
        refuse_shared_memory(each.name, parameters_of(each.parameters))
        filled_in = [field.name for field, _ in each.contents.ListFields()]
        if raw and filled_in:
            raise InvalidInput(f"{each.name}: has contents and raw_input_contents; send one of the two")
        if raw:
            tensors.append(tensor_of(head, raw[at], most_rows, as_bytes=as_bytes))
        elif as_bytes and each.datatype == "BYTES":
            # Without a detour over text, which need not be there.
            framed = raw_of(DATATYPES["BYTES"], _contents(each, filled_in, as_bytes=True))
            tensors.append(tensor_of(head, framed, most_rows, as_bytes=True))
        else:
            tensors.append(from_values(head, _contents(each, filled_in), most_rows, as_bytes=as_bytes))
    return tensors


def _contents(tensor: Any, filled_in: Sequence[str], *, as_bytes: bool = False) -> list[Any]:
    if tensor.datatype in DATATYPES and tensor.datatype not in _CONTENTS:
        raise InvalidInput(f"{tensor.name}: {tensor.datatype} has no contents; send it in raw_input_contents")
    wanted = _CONTENTS.get(tensor.datatype, "")
    others = [name for name in filled_in if name != wanted]
    if wanted and others:
        raise InvalidInput(f"{tensor.name}: its data is in {others[0]}; {tensor.datatype} belongs into {wanted}")
    values = list(getattr(tensor.contents, wanted)) if wanted else []
    if wanted in _FLOATS and not all(map(math.isfinite, values)):
        # JSON, which the shared checks are made for, has none.
        raise InvalidInput(f"{tensor.name}: NaN and infinity cannot be sent")
    if tensor.datatype != "BYTES" or as_bytes:
        return values
    try:
        return [each.decode() for each in values]
    except UnicodeDecodeError:
        raise InvalidInput(f"{tensor.name}: an element is not UTF-8") from None


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request, or of a tensor, as values."""
    chosen = ((name, each, each.WhichOneof("parameter_choice")) for name, each in given.items())
    return {name: getattr(each, choice) for name, each, choice in chosen if choice}


def wanted_of(request: Any) -> Wanted:
    """The outputs that a request asks for. Raises InvalidInput."""
    outputs = [WantedOutput(each.name, parameters_of(each.parameters)) for each in request.outputs]
    return wanted_outputs(InferHead([], outputs=outputs))


def infer_response(model: str, version: str, request_id: str, outputs: Iterable[TensorValue]) -> Any:
    """The answer, with its tensors as raw bytes: the form that every client reads."""
    response = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for each in outputs:
        response.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        response.raw_output_contents.append(bytes(encoded(each)))
    return response
