"""Bytes made of others: each step takes whatever `pick` says, so a generator of random numbers and Hypothesis can both
drive it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

Pick = Callable[[int, int], int]
"""`pick(low, high)`: a whole number between the two, both included."""

# Values at which sizes and offsets are apt to go wrong, in the widths that formats have.
_EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
_FORMS = ("<B", "<H", "<I", "<Q", ">I")
_TEXTS = (
    b"\r\n",
    b"--",
    b"=",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"(",
    b",",
    b"'",
    b"\0",
    b"-1",
    b"9" * 30,
    b"None",
    b"O",
    b"\xff",
)


def mutated(seeds: Sequence[bytes], pick: Pick) -> bytes:
    """One of the seeds, changed in one to four places: what is changed in many is refused at the first."""
    data = bytearray(seeds[pick(0, len(seeds) - 1)])
    for _ in range(pick(1, pick(1, 4))):
        _STEPS[pick(0, len(_STEPS) - 1)](data, pick, seeds)
    return bytes(data)


def _at(data: bytearray, pick: Pick) -> int:
    return pick(0, len(data))


def _flip(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    if data:
        data[pick(0, len(data) - 1)] ^= 1 << pick(0, 7)


def _set(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    if data:
        data[pick(0, len(data) - 1)] = pick(0, 255)


def _number(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    form = _FORMS[pick(0, len(_FORMS) - 1)]
    size = struct.calcsize(form)
    # Where formats have numbers, more often than not.
    at = _at(data, pick) // 4 * 4 if pick(0, 3) else _at(data, pick)
    data[at : at + size] = struct.pack(form, _EDGES[pick(0, len(_EDGES) - 1)] & (256**size - 1))


def _cut(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    del data[_at(data, pick) :]


def _remove(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    at = _at(data, pick)
    del data[at : at + pick(1, 32)]


def _repeat(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    at = _at(data, pick)
    piece = data[at : at + pick(1, 64)]
    data[at:at] = piece * pick(1, 8)


def _insert(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    at = _at(data, pick)
    data[at:at] = _TEXTS[pick(0, len(_TEXTS) - 1)]


def _splice(data: bytearray, pick: Pick, seeds: Sequence[bytes]) -> None:
    other = seeds[pick(0, len(seeds) - 1)]
    begin = pick(0, len(other))
    at = _at(data, pick)
    data[at : at + pick(0, 64)] = other[begin : begin + pick(0, 256)]


_STEPS = (_flip, _set, _number, _number, _cut, _remove, _repeat, _insert, _splice)
