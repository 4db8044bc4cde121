"""Outputs that are numbers as raw tensors of a declared datatype, for callers of KServe who want them in binary form.

    a number, numbers in (nested) lists ──struct──┐
    an array, a tensor on the CPU ───────numpy────┴─▶ a .npy file (`tasks.protocol.tensors`)

What cannot be an element of that datatype leaves the output as it is: the frontend tells what is wrong with it, as it
does where the answer is JSON.
"""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Any

from tasks.protocol.tensors import CODES, DESCRIPTIONS, npy_header

_NUMBERS = {int, float}
_SINGLE = {int, float, bool}
# Up to here the header of a file costs more than texts of numbers.
_FEW = 16
# The kinds of numpy's types whose elements are elements of a datatype, too.
_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


def as_few_numbers(value: Any) -> Any:
    """A number, or a list of some, that are soonest written as JSON; None for anything else, also what is not finite,
    which JSON has no form for.
    """
    if type(value) in _SINGLE:
        return value if _is_finite(value) else None
    if type(value) is not list:
        size, to_list = getattr(value, "size", None), getattr(value, "tolist", None)
        if type(size) is not int or size > _FEW or not callable(to_list):
            return None
        value = to_list()
        if type(value) in _SINGLE:
            return as_few_numbers(value)
    if type(value) is not list or len(value) > _FEW or not set(map(type, value)) <= _SINGLE:
        return None
    return value if _is_finite(sum(value)) else None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        # An integer beyond any float.
        return True


def as_tensor(value: Any, datatype: str) -> bytes | None:
    """A .npy file of elements of one of KServe's datatypes; None if they cannot be such elements."""
    if type(value) in {list, int, float, bool}:
        return _of_list(value, datatype)
    try:
        return _of_array(value, datatype)
    except Exception:  # noqa: BLE001 - on a device, with a gradient, of a type that numpy lacks
        to_list = getattr(value, "tolist", None)
        return _of_list(to_list(), datatype) if callable(to_list) else None


def _of_list(value: Any, datatype: str) -> bytes | None:
    shape: list[int] = []
    values = [value]
    while values and type(values[0]) is list:
        if any(type(each) is not list for each in values) or len(set(map(len, values))) > 1:
            return None
        shape.append(len(values[0]))
        values = list(chain.from_iterable(values))
    if not values:
        # Its further dimensions are those that are declared.
        return None
    code = CODES[datatype]
    takes = {bool} if code == "?" else _NUMBERS if DESCRIPTIONS[datatype][1] == "f" else {int}
    if not set(map(type, values)) <= takes:
        return None
    try:
        packed = struct.pack(f"<{len(values)}{code}", *values)
    except (struct.error, OverflowError):
        return None
    return npy_header(DESCRIPTIONS[datatype], tuple(shape)) + packed


def _of_array(value: Any, datatype: str) -> bytes | None:
    """Raises whatever an array's own code raises."""
    import numpy as np

    array = np.asarray(value)
    wanted = np.dtype(DESCRIPTIONS[datatype])
    if array.dtype.kind not in _KINDS[wanted.kind]:
        return None
    if array.dtype != wanted:
        if array.size and wanted.kind in "iu":
            limits = np.iinfo(wanted)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                return None
        given = array
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(wanted)
        # A number that is too large becomes infinite.
        if wanted.kind == "f" and not np.array_equal(np.isfinite(array), np.isfinite(given)):
            return None
    return npy_header(DESCRIPTIONS[datatype], array.shape) + array.tobytes()
