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

from batching.blobs.local_files import LocalPayload

logger = logging.getLogger(__name__)

Value: TypeAlias = bytes | memoryview | LocalPayload

# With the segment of the rest, as many descriptors as may come with a frame.
MAX_PASSED = 63
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
    again. `ours` are the descriptors that this side needs no longer, once the message is sent.
    """

    places: list[Place]
    opened: list[Opened]
    descriptors: list[int]
    closed: list[int]
    ours: list[int]


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
        self._closed: list[int] = []
        self._numbers = 0
        self._works = hasattr(os, "memfd_create")

    def lend(self, values: Sequence[tuple[int, Value]]) -> Lent | None:
        """Write values, each with its index in the message; None where there is no shared memory for them.

        Payloads that are in shared memory already are passed on as they are, up to `MAX_PASSED`.
        """
        if not self._works:
            return None
        lent = Lent([], [], [], [], [])
        written: list[tuple[int, bytes | memoryview]] = []
        try:
            for index, value in values:
                if not isinstance(value, LocalPayload):
                    written.append((index, value))
                elif len(lent.opened) < MAX_PASSED:
                    self._pass_on(index, value, lent)
                else:
                    written.append((index, bytes(value)))
            if written:
                self._write(written, lent)
        except OSError as error:
            # No descriptors, no memory, or forbidden in this container.
            logger.warning("a batch of %d large values goes through the socket: %s", len(values), error)
            return None
        lent.closed.extend(self._closed)
        self._closed.clear()
        return lent

    def sent(self, lent: Lent) -> None:
        """Close what only the receiver uses from now on. Called after sending, whether or not it went well."""
        for descriptor in lent.ours:
            os.close(descriptor)

    def close(self) -> None:
        for each in self._kept:
            os.close(each.descriptor)
        self._kept.clear()
        self._works = False

    def _pass_on(self, index: int, payload: LocalPayload, lent: Lent) -> None:
        self._numbers += 1
        lent.opened.append(Opened(self._numbers, payload.offset + len(payload), kept=False))
        lent.descriptors.append(payload.descriptor)
        lent.places.append(Place(index, self._numbers, payload.offset, len(payload)))

    def _write(self, values: Sequence[tuple[int, bytes | memoryview]], lent: Lent) -> None:
        places, size = [], _PAGE_BYTES
        for index, value in values:
            places.append(Place(index, 0, size, len(value)))
            size += -(-len(value) // _PAGE_BYTES) * _PAGE_BYTES
        segment = self._free(size)
        new = segment is None
        if segment is None:
            segment = self._new(size)
        try:
            done = os.pwritev(segment.descriptor, [LENT, values[0][1]], MARK_AT) - 1
            for place, (_, value) in zip(places, values, strict=True):
                _write_all(segment.descriptor, value, place.offset, done)
                done = 0
        except OSError:
            self._drop(segment)
            raise
        kept = segment in self._kept
        if new:
            lent.opened.append(Opened(segment.number, segment.size, kept))
            lent.descriptors.append(segment.descriptor)
        if not kept:
            lent.ours.append(segment.descriptor)
        lent.places.extend(Place(each.index, segment.number, each.offset, each.length) for each in places)

    def _drop(self, segment: _Kept) -> None:
        """Use a segment no longer."""
        if segment in self._kept:
            self._kept.remove(segment)
            self._closed.append(segment.number)
        os.close(segment.descriptor)

    def _free(self, size: int) -> _Kept | None:
        """The smallest free segment of that size; where there is none, one that is too small makes way for a larger."""
        free = [each for each in self._kept if each.is_free]
        enough = [each for each in free if each.size >= size]
        if enough:
            return min(enough, key=lambda each: each.size)
        if free and len(self._kept) == _KEPT and size <= MAX_KEPT_BYTES:
            self._drop(min(free, key=lambda each: each.size))
        return None

    def _new(self, size: int) -> _Kept:
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
        return segment


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


def _write_all(descriptor: int, value: bytes | memoryview, start: int, done: int) -> None:
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
