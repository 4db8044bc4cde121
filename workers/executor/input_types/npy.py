"""Arrays in numpy's file format, from bytes that anybody may have made.

    magic, version, a header of text ──numpy──▶ dtype, order, shape ──checked against the bytes that follow──▶ array

The array is a view of the bytes; only bytes that cannot be written to are copied, once, because a model may work in
place, unless it says that it does not. Objects, which would be unpickled, are refused.
"""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_MOST_HEADER_BYTES = 10_000
# An array without elements takes no bytes whatever its shape, but a list of its rows does.
_MOST_EMPTY = 65_536
# The version of the format in which names of fields are UTF-8.
_WITH_ANY_NAMES = (3, 0)


def array_of(raw: bytes | memoryview, *, read_only: bool = False) -> NDArray[np.generic]:
    """The array in a whole `.npy` file. Raises ValueError."""
    head = io.BytesIO(raw[: _MOST_HEADER_BYTES + 12])
    try:
        version, shape, column_major, dtype = _header(head)
    except ValueError:
        raise
    except Exception as error:
        # The header is a Python literal, and its dtype may be any text: whatever they raise is the caller's mistake.
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled")
    if not dtype.itemsize:
        raise ValueError(f"its type {dtype} has no size")
    count = math.prod(shape)
    left = len(raw) - head.tell()
    if left != count * dtype.itemsize:
        raise ValueError(f"its header claims {count} elements of {dtype.itemsize} bytes, but {left} bytes follow")
    if not count and math.prod(each or 1 for each in shape) > _MOST_EMPTY:
        raise ValueError(f"it has no elements, but more than {_MOST_EMPTY} rows")
    if version == _WITH_ANY_NAMES:
        # numpy has no function for this header alone; as all of it has been counted, the rest is safe to read.
        array = npy.read_array(io.BytesIO(raw), max_header_size=_MOST_HEADER_BYTES)
        array.flags.writeable = not read_only
        return array
    view = memoryview(raw)[head.tell() :]
    if read_only:
        view = view.toreadonly()
    flat = np.frombuffer(bytearray(view) if view.readonly and not read_only else view, dtype)
    return flat.reshape(shape, order="F" if column_major else "C")


def _header(head: io.BytesIO) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(head)
    if version not in {(1, 0), (2, 0), _WITH_ANY_NAMES}:
        raise ValueError(f"its version {version} is unknown")
    # Read as the second version, the third has the names of fields in a wrong encoding, and all else is right.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, column_major, dtype = read(head, max_header_size=_MOST_HEADER_BYTES)
    if any(type(each) is not int for each in shape):
        # numpy takes True for a length here, and refuses it when the array is made.
        raise ValueError("its shape has a length that is no integer")
    if any(each < 0 for each in shape):
        raise ValueError("its shape has a negative length")
    return version, shape, column_major, dtype
