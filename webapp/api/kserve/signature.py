"""The inputs and outputs of a model: tensors ⇄ what the model gets and gives, row by row. Pure.

one input: each row is its value · several: {name: value} · more dimensions: nested lists
one output: each row is its value · several: {name: value}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from config.schema import ModelSettings, Tensor
from config.settings import Settings
from tasks.errors import InferenceFailed, InvalidInput
from webapp.api.kserve.binary_outputs import raw_column
from webapp.api.kserve.binary_rows import binary_rows
from webapp.api.kserve.datatypes import DATATYPES, fits
from webapp.api.kserve.shapes import flattened, matches, rows_of
from webapp.api.kserve.tensors import TensorValue, Wanted
from webapp.model_tasks import ModelTasks

_TEXT = Tensor("input", "BYTES")
_ANY = Tensor("output", "BYTES")
_EMBEDDING = Tensor("output", "FP32", [-1])

_encode = msgspec.json.Encoder().encode


class Signature(msgspec.Struct, frozen=True):
    """The tensors that one model takes and gives."""

    model: str
    version: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    input_type: str = "json"

    @property
    def takes_bytes(self) -> bool:
        """True if tensors must be read as bytes."""
        return self.input_type != "json"

    def rows(self, tensors: Sequence[TensorValue]) -> list[Any]:
        """Return the input of each row, as the model gets it. Raises InvalidInput."""
        given = {each.name: each for each in tensors}
        if len(given) < len(tensors):
            raise InvalidInput("inputs: a name is there twice")
        known = {each.name for each in self.inputs}
        for name in given:
            if name not in known:
                raise InvalidInput(
                    f"there is no input {name[:64]!r}; the inputs of {self.model} are {', '.join(sorted(known))}"
                )
        columns = [self._column(each, given.get(each.name)) for each in self.inputs]
        if len({len(each) for each in columns}) > 1:
            raise InvalidInput("inputs: the first dimension is the number of rows, the same for all inputs")
        if len(columns) == 1:
            return list(columns[0])
        names = [each.name for each in self.inputs]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _column(self, declared: Tensor, tensor: TensorValue | None) -> Sequence[Any]:
        if tensor is None:
            raise InvalidInput(f"{declared.name}: is missing")
        if tensor.datatype != declared.datatype:
            raise InvalidInput(
                f"{declared.name}: is {tensor.datatype}; {self.model} takes {declared.datatype}"
                " (`inputs` of the model in bunch.toml)"
            )
        if not matches(declared.shape, tensor.shape[1:]):
            raise InvalidInput(
                f"{declared.name}: has shape {tensor.shape}; {self.model} takes {[-1, *declared.shape]},"
                " and the first dimension is the number of rows"
            )
        if self.takes_bytes:
            return binary_rows(tensor, declared.shape, self.input_type)
        return rows_of(tensor.values, tensor.shape, declared.shape)

    def wanted(self, asked: Wanted) -> list[tuple[Tensor, bool]]:
        """The outputs that are asked for, and whether in binary form. Raises InvalidInput."""
        known = {each.name: each for each in self.outputs}
        for name in asked.named:
            if name not in known:
                raise InvalidInput(
                    f"there is no output {name[:64]!r}; the outputs of {self.model} are {', '.join(known)}"
                )
        if not asked.named:
            return [(each, asked.binary) for each in self.outputs]
        return [(known[name], binary) for name, binary in asked.named.items()]

    def tensors(self, rows: Sequence[Any], wanted: Sequence[Tensor], *, packed: bool = False) -> list[TensorValue]:
        """Return the outputs over all rows; a row is what the model gave, or if `packed` perhaps a .npy file of
        it. Raises InferenceFailed.
        """
        if len(self.outputs) > 1 and any(type(each) is not dict for each in rows):
            raise InferenceFailed(f"{self.model} declares several outputs, so each of its outputs must be a dict")
        return [self._output(declared, rows, packed=packed) for declared in wanted]

    def _output(self, declared: Tensor, rows: Sequence[Any], *, packed: bool) -> TensorValue:
        name = declared.name
        column = list(rows)
        if len(self.outputs) > 1:
            if any(name not in each for each in rows):
                raise InferenceFailed(f"the model's output has no {name}, which it declares")
            column = [each[name] for each in rows]
        raw = raw_column(declared, column) if packed else None
        if raw is not None:
            return raw
        values, shape = flattened(column, declared.shape, name)
        datatype = DATATYPES[declared.datatype]
        if datatype.kind is str:
            # Any JSON value has a text; a string is its own, and bytes are bytes.
            values = [each if type(each) in {str, bytes} else _encode(each).decode() for each in values]
        elif not fits(datatype, values):
            raise InferenceFailed(f"the model's output {name} is not {datatype.name}, as it declares")
        return TensorValue(name, declared.datatype, shape, values)


def signatures_of(settings: Settings, tasks: ModelTasks) -> dict[str, Signature]:
    """The signature of every model."""
    return {name: signature_of(model, embeds="embed" in tasks[name].tasks) for name, model in settings.models.items()}


def signature_of(model: ModelSettings, *, embeds: bool) -> Signature:
    """The declaration of a model, or what counts as one: a text in; out an embedding, or any value as text."""
    output = _EMBEDDING if embeds else _ANY
    inputs, outputs = model.inputs or [_TEXT], model.outputs or [output]
    return Signature(model.name, model.version, inputs, outputs, model.input_type)
