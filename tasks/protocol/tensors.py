"""Tensors of numbers as .npy files, written and read without numpy. Pure.

A .npy file has its elements' type and its shape in front, and then the elements as they lie in memory. It carries a
tensor where JSON would have a text for each number: rows of KServe's inputs to a model, and outputs to its callers.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

CODES = {
    "BOOL": "?",
    **{f"INT{8 * size}": code for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))},
    **{f"UINT{8 * size}": code for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))},
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""The elements of each of KServe's datatypes of numbers in `struct`'s form. numpy has no BF16."""

DESCRIPTIONS = {
    "BOOL": "|b1",
    **{f"INT{8 * size}": f"{'|' if size == 1 else '<'}i{size}" for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": f"{'|' if size == 1 else '<'}u{size}" for size in (1, 2, 4, 8)},
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""The same in numpy's form."""

_MAGIC = b"\x93NUMPY\x01\x00"
_LENGTH = struct.Struct("<H")
_BEGIN = len(_MAGIC) + _LENGTH.size
_ALIGNED = 64
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z][0-9])', 'fortran_order': False, 'shape': \(((?:[0-9]{1,18}, ?)*[0-9]{0,18})\), \} *\n"
)


class Npy(NamedTuple):
    """The parts of a file. `description` is the type of its elements, as numpy writes it."""

    description: str
    shape: tuple[int, ...]
    data: memoryview


@lru_cache(maxsize=256)
def npy_header(description: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of a file, for elements in C's order."""
    text = f"{{'descr': '{description}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    # Spaces and a line feed, so that the data begins at a multiple of 64.
    length = -(_BEGIN + len(text) + 1) % _ALIGNED + len(text) + 1
    return _MAGIC + _LENGTH.pack(length) + text.ljust(length - 1) + b"\n"


def read_npy(raw: bytes) -> Npy | None:
    """The parts of a file as `npy_header` begins it; None for anything else. Its data may have any length."""
    if not raw.startswith(_MAGIC) or len(raw) < _BEGIN:
        return None
    end = _BEGIN + _LENGTH.unpack_from(raw, len(_MAGIC))[0]
    found = _parsed(raw[_BEGIN:end])
    return None if found is None else Npy(*found, memoryview(raw)[end:])


@lru_cache(maxsize=256)
def _parsed(header: bytes) -> tuple[str, tuple[int, ...]] | None:
    found = _HEADER.fullmatch(header)
    if found is None:
        return None
    return found[1].decode(), tuple(int(each) for each in found[2].replace(b" ", b"").split(b",") if each)
