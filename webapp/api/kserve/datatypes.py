"""The datatypes of the Open Inference Protocol: raw bytes ⇄ flat lists of Python values. Pure.

    raw, little-endian ──values_of──▶ [value, …] ──raw_of──▶ raw
    JSON `data` ────────checked─────▶ [value, …]

BOOL is a byte. FP16 and BF16, the upper half of an FP32, have no form in JSON. Each element of BYTES has its length
in front, 4 bytes; here it is UTF-8, since a model gets JSON. NaN and the infinities are no JSON either.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import InvalidInput

_LENGTH = struct.Struct("<I")
_HALF_OF_FP32 = 16


@dataclass(frozen=True, slots=True)
class Datatype:
    """One datatype.

    Args:
        size: bytes of an element; 0 for BYTES, whose elements differ.
        code: the element in `struct`'s form.
        config: the name in a model's configuration.
        kind: of the Python value: bool, int, float or str.
        low, high: limits of an element, both allowed.
    """

    name: str
    size: int
    code: str
    config: str
    kind: type
    low: float = 0
    high: float = 0

    @property
    def only_raw(self) -> bool:
        """True if it has no form in JSON."""
        return self.name in {"FP16", "BF16"}


def _integer(name: str, size: int, code: str) -> Datatype:
    bits = 8 * size
    low, high = (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Datatype(name, size, code, f"TYPE_{name}", int, low, high)


def _float(name: str, size: int, code: str, high: float) -> Datatype:
    return Datatype(name, size, code, f"TYPE_{name}", float, -high, high)


DATATYPES: dict[str, Datatype] = {
    each.name: each
    for each in (
        Datatype("BOOL", 1, "?", "TYPE_BOOL", bool),
        *(_integer(f"INT{8 * size}", size, code) for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))),
        *(_integer(f"UINT{8 * size}", size, code) for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))),
        _float("FP16", 2, "e", 65504.0),
        _float("BF16", 2, "H", struct.unpack("<f", b"\0\0\x7f\x7f")[0]),
        _float("FP32", 4, "f", struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]),
        _float("FP64", 8, "d", sys.float_info.max),
        Datatype("BYTES", 0, "", "TYPE_STRING", str),
    )
}


def values_of(datatype: Datatype, raw: bytes | memoryview, count: int, name: str) -> list[Any]:
    """Decode `count` elements of the tensor `name`. Raises InvalidInput, also for bytes too many or too few."""
    if datatype.kind is str:
        return _strings(raw, count, name)
    check_size(datatype, raw, count, name)
    values: Sequence[Any] = struct.unpack(f"<{count}{datatype.code}", raw)
    if datatype.name == "BF16":
        widened = struct.pack(f"<{count}I", *(each << _HALF_OF_FP32 for each in values))
        values = struct.unpack(f"<{count}f", widened)
    if datatype.kind is float and not all(map(math.isfinite, values)):
        raise InvalidInput(f"{name}: NaN and infinity cannot be sent")
    return list(values)


def check_size(datatype: Datatype, raw: bytes | memoryview, count: int, name: str) -> None:
    """Raise InvalidInput unless the raw bytes of numbers are as long as `count` of them."""
    if len(raw) != count * datatype.size:
        raise InvalidInput(
            f"{name}: {len(raw)} bytes of data, but its shape has {count} elements of {datatype.size} bytes"
        )


def _strings(raw: bytes | memoryview, count: int, name: str) -> list[str]:
    values: list[str] = []
    for each in elements_of(raw, count, name):
        try:
            values.append(str(each, "utf-8"))
        except UnicodeDecodeError:
            raise InvalidInput(f"{name}: element {len(values)} is not UTF-8") from None
    return values


def elements_of(raw: bytes | memoryview, count: int, name: str) -> list[bytes]:
    """Split the raw bytes of a BYTES tensor into its elements. Raises InvalidInput."""
    # The shortest element is a length of 0: a count that lies is found without a loop over it.
    if len(raw) < count * _LENGTH.size:
        raise InvalidInput(f"{name}: {len(raw)} bytes of data are too few for the {count} elements of its shape")
    values: list[bytes] = []
    at = 0
    for _ in range(count):
        if at + _LENGTH.size > len(raw):
            raise InvalidInput(f"{name}: the data ends before element {len(values)}")
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(raw, at)[0]
        if at > len(raw):
            raise InvalidInput(
                f"{name}: element {len(values)} is said to have {at - begin} bytes; {len(raw) - begin} are left"
            )
        values.append(bytes(raw[begin:at]))
    if at != len(raw):
        raise InvalidInput(f"{name}: {len(raw) - at} bytes of data are left after its {count} elements")
    return values


def raw_of(datatype: Datatype, values: Sequence[Any]) -> bytes:
    """Encode values that `fits`."""
    if datatype.kind is str:
        return b"".join(part for each in values for part in _string(each))
    if datatype.name == "BF16":
        bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        values = [_upper_half(each) for each in bits]
    return struct.pack(f"<{len(values)}{datatype.code}", *values)


def _string(value: str | bytes) -> tuple[bytes, bytes]:
    encoded = value.encode() if isinstance(value, str) else value
    return _LENGTH.pack(len(encoded)), encoded


def _upper_half(bits: int) -> int:
    """Round to nearest, ties to even, as processors do."""
    return min((bits + 0x7FFF + (bits >> _HALF_OF_FP32 & 1)) >> _HALF_OF_FP32, 0xFF7F if bits >> 31 else 0x7F7F)


def checked(datatype: Datatype, data: list[Any], name: str) -> list[Any]:
    """Return the elements of JSON `data` as the values that the same tensor has in raw form. Raises InvalidInput."""
    if datatype.only_raw:
        raise InvalidInput(f"{name}: {datatype.name} has no form in JSON; send it as binary data")
    if not fits(datatype, data):
        raise InvalidInput(f"{name}: an element of its data is no {datatype.name}")
    return list(map(float, data)) if datatype.kind is float else data


def fits(datatype: Datatype, values: Sequence[Any]) -> bool:
    """True if each value, read from JSON, can be an element. JSON has no NaN."""
    kinds = set(map(type, values))
    if datatype.kind is float:
        # A JSON writer may spell 1.0 as 1.
        return kinds <= {int, float} and _within(datatype, values)
    return kinds <= {datatype.kind} and (datatype.kind is not int or _within(datatype, values))


def _within(datatype: Datatype, values: Sequence[Any]) -> bool:
    # Not a loop over them: an embedding has hundreds.
    return not values or (datatype.low <= min(values) and max(values) <= datatype.high)
