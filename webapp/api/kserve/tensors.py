"""The body of an inference request and of its answer, both in JSON with binary tensors behind it. Pure.

    ┌ JSON: inputs, outputs, parameters ┬ raw tensor ┬ raw tensor …
    └ Inference-Header-Content-Length ──┘ `binary_data_size` each, in the order of the inputs

The header names where the JSON ends; without it all of the body is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tasks.errors import InvalidInput
from webapp.api.kserve.datatypes import DATATYPES, check_size, checked, elements_of, raw_of, values_of
from webapp.api.kserve.shapes import checked_shape, flat_data

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY = "application/octet-stream"

# More digits than the length of any body has.
_MOST_DIGITS = 12
_SHARED_MEMORY = "shared_memory_region"
_encode = msgspec.json.Encoder().encode

# As in the protocol's messages; a larger one would make messages with numbers that Python refuses to print.
Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TensorHead(msgspec.Struct):
    """One input as the JSON of a request has it."""

    name: str
    datatype: str
    shape: list[Dimension]
    data: list[Any] | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET


class WantedOutput(msgspec.Struct):
    """One output that a request asks for."""

    name: str
    parameters: dict[str, Any] | UnsetType | None = UNSET


class InferHead(msgspec.Struct):
    """The JSON of `POST /v2/models/{model}/infer`."""

    inputs: list[TensorHead]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[WantedOutput] | None = None


class TensorValue(msgspec.Struct, frozen=True):
    """A tensor with its elements, flat. Those of an output's BYTES are strings, or bytes.

    An input that was read as bytes has its BYTES as such, and its numbers in `raw` alone; so has an output whose rows
    were bytes.
    """

    name: str
    datatype: str
    shape: list[int]
    values: list[Any]
    raw: bytes | memoryview = b""


class Wanted(msgspec.Struct, frozen=True):
    """The outputs that are asked for: name → whether in binary form; none named: all of them, in binary form or not."""

    named: dict[str, bool]
    binary: bool = False


def split(body: bytes, length: str | None) -> tuple[bytes, memoryview]:
    """The JSON and what follows it; `length` is the header of that name. Raises InvalidInput."""
    if length is None:
        return body, memoryview(b"")
    if not length.isascii() or not length.isdigit() or len(length) > _MOST_DIGITS:
        raise InvalidInput(f"{HEADER_LENGTH} must be a number of bytes")
    end = int(length)
    if end > len(body):
        raise InvalidInput(f"{HEADER_LENGTH} is {end}, but the body has only {len(body)} bytes")
    return body[:end], memoryview(body)[end:]


def tensors_of(
    heads: Sequence[TensorHead], raw: memoryview, most_rows: int, *, as_bytes: bool = False
) -> list[TensorValue]:
    """Read all inputs, `as_bytes` for a model that takes those; `raw` is what follows the JSON. Raises InvalidInput."""
    tensors: list[TensorValue] = []
    for head in heads:
        size = _binary_size(head)
        if size is None:
            if isinstance(head.data, UnsetType):
                raise InvalidInput(f"{head.name}: has no data, and no binary_data_size among its parameters")
            tensors.append(from_values(head, head.data, most_rows, as_bytes=as_bytes))
            continue
        if size > len(raw):
            raise InvalidInput(
                f"{head.name}: binary_data_size is {size}, but only {len(raw)} bytes follow"
                + ("" if len(raw) else f" the JSON; {HEADER_LENGTH} must say where it ends")
            )
        tensors.append(tensor_of(head, raw[:size], most_rows, as_bytes=as_bytes))
        raw = raw[size:]
    if len(raw):
        raise InvalidInput(f"{len(raw)} bytes follow the last input; binary_data_size of the inputs must count all")
    return tensors


def _binary_size(head: TensorHead) -> int | None:
    parameters = head.parameters or {}
    refuse_shared_memory(head.name, parameters)
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidInput(f"{head.name}: binary_data_size must be a number of bytes")
    if head.data is not UNSET:
        raise InvalidInput(f"{head.name}: has data and binary_data_size; send one of the two")
    return size


def refuse_shared_memory(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise InvalidInput for an input whose data is in memory that it shares with a server on its machine."""
    if _SHARED_MEMORY in parameters:
        raise InvalidInput(f"{name}: shared memory is not offered; send the data with the request")


def from_values(head: TensorHead, data: list[Any], most_rows: int, *, as_bytes: bool = False) -> TensorValue:
    """Read one input from its elements as JSON has them, flat or nested. Raises InvalidInput."""
    datatype, _ = _known(head, most_rows)
    values = checked(datatype, flat_data(data, head.shape, head.name), head.name)
    if not as_bytes:
        return TensorValue(head.name, datatype.name, head.shape, values)
    if datatype.kind is str:
        return TensorValue(head.name, datatype.name, head.shape, [each.encode() for each in values])
    return TensorValue(head.name, datatype.name, head.shape, [], raw_of(datatype, values))


def tensor_of(head: TensorHead, raw: bytes | memoryview, most_rows: int, *, as_bytes: bool = False) -> TensorValue:
    """Read one input from its raw bytes. Raises InvalidInput."""
    datatype, count = _known(head, most_rows)
    if as_bytes and datatype.kind is str:
        return TensorValue(head.name, datatype.name, head.shape, elements_of(raw, count, head.name))
    if as_bytes:
        check_size(datatype, raw, count, head.name)
        return TensorValue(head.name, datatype.name, head.shape, [], raw)
    return TensorValue(head.name, datatype.name, head.shape, values_of(datatype, raw, count, head.name))


def _known(head: TensorHead, most_rows: int) -> Any:
    datatype = DATATYPES.get(head.datatype)
    if datatype is None:
        raise InvalidInput(
            f"{head.name[:64]}: there is no datatype {head.datatype[:64]!r}; the datatypes are {', '.join(DATATYPES)}"
        )
    return datatype, checked_shape(head.shape, head.name, most_rows)


def wanted_outputs(head: InferHead) -> Wanted:
    """The outputs that a request asks for. Raises InvalidInput, for a form that there is not."""
    binary = _flag(head.parameters, "binary_data_output", "parameters", default=False)
    named: dict[str, bool] = {}
    for each in head.outputs or ():
        parameters = each.parameters or {}
        if each.name in named:
            raise InvalidInput("outputs: a name is there twice")
        if _SHARED_MEMORY in parameters:
            raise InvalidInput(f"{each.name}: shared memory is not offered; the data comes with the answer")
        if parameters.get("classification"):
            raise InvalidInput(f"{each.name}: classification is not offered; ask for the output itself")
        named[each.name] = _flag(parameters, "binary_data", each.name, default=binary)
    return Wanted(named, binary)


def _flag(parameters: dict[str, Any] | UnsetType | None, key: str, where: str, *, default: bool) -> bool:
    value = (parameters or {}).get(key, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {key} must be true or false")
    return value


def encoded(tensor: TensorValue) -> bytes | memoryview:
    """The elements of an output as raw bytes."""
    return tensor.raw or raw_of(DATATYPES[tensor.datatype], tensor.values)


def answer_body(head: dict[str, Any], outputs: Sequence[TensorValue], binary: Sequence[bool]) -> tuple[bytes, int]:
    """The body of an answer, and the length of its JSON; 0 if all of it is JSON.

    Raises:
        InvalidInput: an output was asked for in JSON that has no form in it.
    """
    described: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for tensor, raw in zip(outputs, binary, strict=True):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        datatype = DATATYPES[tensor.datatype]
        if raw:
            parts.append(encoded(tensor))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        elif datatype.only_raw:
            raise InvalidInput(f"{tensor.name}: {datatype.name} has no form in JSON; ask for it as binary data")
        else:
            entry["data"] = tensor.values
        described.append(entry)
    text = _encode({**head, "outputs": described})
    return b"".join([text, *parts]), len(text) if parts else 0
