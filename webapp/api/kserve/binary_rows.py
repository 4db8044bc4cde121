"""The rows of a tensor for a model that takes bytes: each becomes an input without becoming Python values. Pure.

BYTES ─────────────────── each element is an input
UINT8 ─────────────────── each row is one                     to a model of `bytes`, or of Arrow streams
any datatype of numbers ─ each row is an array, as a .npy file             to a model of arrays
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from tasks.protocol.tensors import DESCRIPTIONS, npy_header
from webapp.api.kserve.datatypes import DATATYPES
from webapp.api.kserve.tensors import TensorValue
from webapp.encoded import Binary
from webapp.media_types import NPY


def binary_rows(tensor: TensorValue, row_shape: Sequence[int], input_type: str) -> list[Binary]:
    """The input of each row. `tensor` is one that was read as bytes; `row_shape` is the declared shape of a row."""
    if tensor.datatype == "BYTES":
        return [Binary(each) for each in tensor.values]
    shape = tuple(tensor.shape[1 : len(row_shape) + 1])
    rows = tensor.shape[0]
    raw, head, content_type = memoryview(tensor.raw), b"", ""
    if input_type == "npy":
        head, content_type = npy_header(_description(tensor.datatype), shape), NPY
        if tensor.datatype == "BF16":
            raw = memoryview(_widened(raw))
    size = prod(shape) * (4 if tensor.datatype == "BF16" else DATATYPES[tensor.datatype].size)
    return [Binary(head + raw[at * size : (at + 1) * size], content_type) for at in range(rows)]


def _description(datatype: str) -> str:
    # numpy has no BF16: those become the FP32 of which they are the upper half.
    return DESCRIPTIONS["FP32" if datatype == "BF16" else datatype]


def _widened(raw: memoryview) -> bytes:
    count = len(raw) // 2
    return struct.pack(f"<{count}I", *(each << 16 for each in struct.unpack(f"<{count}H", raw)))
