"""Large byte strings between a worker and its executor's process: by shared memory, not through their socket.

    sender: values ──pwrite──▶ memfd ──its descriptor, once──▶ receiver: maps it (child), or reads it (worker)
                                │
         first page: 1, lent ───┴── 0, given back ◀── no view of the values is left

A segment is a memfd: it has no name, and the kernel frees it with the last process that has it open or mapped, however
the two sides die. A kept segment is used again once the receiver has given it back; finding and clearing pages for each
batch anew costs more than the copy. Two batches are in hand, and a third may have just been answered, so three are
kept. Where a model keeps its inputs, further ones are made for a single use, as are those above `MAX_KEPT_BYTES`.

The worker maps nothing: what it has mapped, its child could truncate.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

logger = logging.getLogger(__name__)

Value: TypeAlias = bytes | memoryview

MAX_KEPT_BYTES = 1 << 26
_KEPT = 3
_MIN_BYTES = 1 << 20
# Values begin on a page, so that each can be mapped by itself. The mark is in front of the first one.
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MARK_AT = _PAGE_BYTES - 1
LENT, FREE = b"\1", b"\0"


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """A segment whose descriptor comes with the message. `kept`: it comes again; its mark says whether it is lent."""

    segment: int
    size: int
    kept: bool


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of one value of a message."""

    index: int
    segment: int
    offset: int
    length: int


class Values(Protocol):
    """The receiving side of one direction."""

    def take(self, places: Sequence[Place], opened: Sequence[Opened], descriptors: Sequence[int]) -> list[Any]:
        """The values at these places, in their order. The descriptors are the receiver's.

        Raises:
            ValueError: the other side has named what there is not.
        """

    def forget(self, closed: Sequence[int]) -> None:
        """These segments do not come again."""

    def close(self) -> None:
        """Give back the memory."""


class Lent(msgspec.Struct, frozen=True):
    """Values in shared memory. `opened` are new to the receiver, with a descriptor each; `closed` ones do not come
    again.
    """

    places: list[Place]
    opened: list[Opened]
    descriptors: list[int]
    closed: list[int]


class _Kept:
    __slots__ = ("descriptor", "number", "size")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        self.number, self.descriptor, self.size = number, descriptor, size

    @property
    def is_free(self) -> bool:
        return os.pread(self.descriptor, 1, MARK_AT) == FREE


class SegmentWriter:
    """The sending side of one direction; used by one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._numbers = 0
        self._works = hasattr(os, "memfd_create")

    def lend(self, values: Sequence[tuple[int, Value]]) -> Lent | None:
        """Write values, each with its index in the message; None where there is no shared memory for them."""
        if not self._works:
            return None
        offset, starts = _PAGE_BYTES, []
        for _, value in values:
            starts.append(offset)
            offset += -(-len(value) // _PAGE_BYTES) * _PAGE_BYTES
        try:
            return self._write(values, starts, offset)
        except OSError as error:
            # No descriptors, no memory, or forbidden in this container.
            logger.warning("no shared memory for %d bytes; they go through the socket: %s", offset, error)
            return None

    def sent(self, lent: Lent) -> None:
        """Close what only the receiver uses from now on. Called after sending, whether or not it went well."""
        kept = {each.descriptor for each in self._kept}
        for descriptor in lent.descriptors:
            if descriptor not in kept:
                os.close(descriptor)

    def close(self) -> None:
        for each in self._kept:
            os.close(each.descriptor)
        self._kept.clear()
        self._works = False

    def _write(self, values: Sequence[tuple[int, Value]], starts: list[int], size: int) -> Lent:
        closed: list[int] = []
        opened: list[Opened] = []
        descriptors: list[int] = []
        segment = self._free(size, closed)
        if segment is None:
            segment, kept = self._new(size)
            opened.append(Opened(segment.number, segment.size, kept))
            descriptors.append(segment.descriptor)
        try:
            done = os.pwritev(segment.descriptor, [LENT, values[0][1]], MARK_AT) - 1
            for (_, value), start in zip(values, starts, strict=True):
                _write_all(segment.descriptor, value, start, done)
                done = 0
        except OSError:
            if descriptors:
                self._kept = [each for each in self._kept if each is not segment]
                os.close(segment.descriptor)
            raise
        places = [
            Place(index, segment.number, start, len(value))
            for (index, value), start in zip(values, starts, strict=True)
        ]
        return Lent(places, opened, descriptors, closed)

    def _free(self, size: int, closed: list[int]) -> _Kept | None:
        """The smallest free segment of that size; where there is none, one that is too small makes way for a larger."""
        free = [each for each in self._kept if each.is_free]
        enough = [each for each in free if each.size >= size]
        if enough:
            return min(enough, key=lambda each: each.size)
        if free and len(self._kept) == _KEPT and size <= MAX_KEPT_BYTES:
            smallest = min(free, key=lambda each: each.size)
            self._kept.remove(smallest)
            os.close(smallest.descriptor)
            closed.append(smallest.number)
        return None

    def _new(self, size: int) -> tuple[_Kept, bool]:
        """A new segment, and whether it is kept."""
        kept = len(self._kept) < _KEPT and size <= MAX_KEPT_BYTES
        # Twice as large as the one before at least, so that growing inputs do not replace it for each batch.
        size = max(_MIN_BYTES, 1 << (size - 1).bit_length()) if kept else size
        descriptor = os.memfd_create("bunch-batch")
        try:
            # Pages are taken when they are written to.
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        self._numbers += 1
        segment = _Kept(self._numbers, descriptor, size)
        if kept:
            self._kept.append(segment)
        return segment, kept


class SegmentReader:
    """The receiving side in the worker: values are copied out, and the segment is given back at once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, int]] = {}

    def take(self, places: Sequence[Place], opened: Sequence[Opened], descriptors: Sequence[int]) -> list[bytes]:
        single: dict[int, tuple[int, int]] = {}
        for each, descriptor in zip(opened, descriptors, strict=True):
            into = self._kept if each.kept else single
            into[each.segment] = descriptor, os.fstat(descriptor).st_size
        try:
            return [_read_all(*self._of(place, single), place) for place in places]
        finally:
            for descriptor, _ in single.values():
                os.close(descriptor)
            for number in {each.segment for each in places} & self._kept.keys():
                os.pwrite(self._kept[number][0], FREE, MARK_AT)

    def forget(self, closed: Sequence[int]) -> None:
        for number in closed:
            if number in self._kept:
                os.close(self._kept.pop(number)[0])

    def close(self) -> None:
        self.forget(list(self._kept))

    def _of(self, place: Place, single: dict[int, tuple[int, int]]) -> tuple[int, int]:
        found = self._kept.get(place.segment) or single.get(place.segment)
        if found is None:
            raise ValueError(f"segment {place.segment} is unknown")
        return found


def _write_all(descriptor: int, value: Value, start: int, done: int) -> None:
    """Write what is left of a value, of which so many bytes are `done`."""
    while done < len(value):
        done += os.pwrite(descriptor, memoryview(value)[done:], start + done)


def _read_all(descriptor: int, size: int, place: Place) -> bytes:
    if min(place.offset, place.length) < 0 or place.offset + place.length > size:
        raise ValueError(f"{place.length} bytes at {place.offset} in a segment of {size}")
    value = os.pread(descriptor, place.length, place.offset)
    if len(value) == place.length:
        return value
    # A single call of the kernel reads 2 GiB at most.
    parts = [value]
    while (done := sum(map(len, parts))) < place.length:
        part = os.pread(descriptor, place.length - done, place.offset + done)
        if not part:
            raise ValueError(f"{place.length} bytes at {place.offset} in a segment that has shrunk")
        parts.append(part)
    return b"".join(parts)
