"""An output's rows as one raw tensor, where the executor has made them .npy files: no number becomes a Python object.

asked for in binary form ──"$output": "FP32"──▶ executor ──▶ a .npy file for each row ──raw_column──▶ one tensor
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from config.schema import Tensor
from tasks.errors import InferenceFailed
from tasks.protocol.tensors import DESCRIPTIONS, read_npy
from webapp.api.kserve.datatypes import DATATYPES, fits, raw_of
from webapp.api.kserve.shapes import flattened, matches
from webapp.api.kserve.tensors import TensorValue

_FEW = 16


def form_of(outputs: Sequence[Tensor], binary: Sequence[bool]) -> str:
    """The form in which the executor is to give outputs of which these are asked for; empty: as JSON. Only a model with
    a single output gives all of it in one form.
    """
    if len(outputs) != 1 or not all(binary) or outputs[0].datatype not in DESCRIPTIONS:
        return ""
    shape = outputs[0].shape
    # To ask costs more than the texts of a few numbers.
    return "" if -1 not in shape and prod(shape) <= _FEW else outputs[0].datatype


def raw_column(declared: Tensor, rows: Sequence[Any]) -> TensorValue | None:
    """The tensor of rows of which some are bytes; None if none is. Raises InferenceFailed."""
    if bytes not in map(type, rows):
        return None
    parts: list[bytes | memoryview] = []
    shapes: set[tuple[int, ...]] = set()
    head = b""
    size = -1
    for row in rows:
        if type(row) is bytes and len(row) == size and row.startswith(head):
            # As the row before it, which has been looked at: nearly always.
            parts.append(row[len(head) :])
        elif type(row) is bytes:
            found, shape = _of_file(declared, row)
            head, size = row[: len(row) - len(found)], len(row)
            parts.append(found)
            shapes.add(shape)
        else:
            values, shape = _of_values(declared, row)
            parts.append(values)
            shapes.add(shape)
    if len(shapes) > 1:
        raise InferenceFailed(f"the rows of the model's output {declared.name} differ in shape; send one at a time")
    return TensorValue(declared.name, declared.datatype, [len(rows), *shapes.pop()], [], b"".join(parts))


def _of_file(declared: Tensor, row: bytes) -> tuple[memoryview, tuple[int, ...]]:
    name, datatype = declared.name, DATATYPES[declared.datatype]
    found = read_npy(row)
    if found is None or found.description != DESCRIPTIONS[datatype.name]:
        raise _wrong_type(declared)
    if len(found.data) != prod(found.shape) * datatype.size:
        raise InferenceFailed(f"the model's output {name} is cut off")
    if declared.shape and len(found.shape) < len(declared.shape):
        raise InferenceFailed(f"the model's output {name} has fewer dimensions than it declares")
    if len(found.shape) != len(declared.shape):
        raise _wrong_type(declared)
    if not matches(declared.shape, found.shape):
        raise InferenceFailed(
            f"the model's output {name} has {list(found.shape)} where it declares {list(declared.shape)}"
        )
    return found.data, found.shape


def _of_values(declared: Tensor, row: Any) -> tuple[bytes, tuple[int, ...]]:
    values, shape = flattened([row], declared.shape, declared.name)
    datatype = DATATYPES[declared.datatype]
    if not fits(datatype, values):
        raise _wrong_type(declared)
    return raw_of(datatype, values), tuple(shape[1:])


def _wrong_type(declared: Tensor) -> InferenceFailed:
    return InferenceFailed(f"the model's output {declared.name} is not {declared.datatype}, as it declares")
