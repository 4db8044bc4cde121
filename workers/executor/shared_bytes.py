"""The receiving side of shared memory in the executor's process: inputs that stay where the worker has written them.

    segment ──mapped once──▶ lease ──▶ SharedBytes ──view──────▶ read-only, pinned where torch uses CUDA
                               │                   └─private()─▶ may be written to: then that page alone is copied
                               └── no view is left ──▶ the mark of the segment: given back

The lease lives as long as any view, slice, array or buffer of it, in whatever object of the model. So a model may keep
an input; the worker finds the segment lent, and takes another.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any, Self

from workers.executor.device_memory import pin, unpin
from workers.executor.segments import FREE, MARK_AT, Opened, Place


class SharedBytes:
    """An input in shared memory. Equal ones are equal, and have the same hash."""

    __slots__ = ("_descriptor", "_offset", "_owner", "view")

    def __init__(self, owner: Any, whole: memoryview, descriptor: int, place: Place) -> None:
        self._owner = owner
        self.view = whole[place.offset : place.offset + place.length]
        self._descriptor = descriptor
        self._offset = place.offset

    def __len__(self) -> int:
        return len(self.view)

    def __bytes__(self) -> bytes:
        if isinstance(self._owner, _SingleUse):
            # To map pages that are looked at once takes longer than to have the kernel copy them.
            with contextlib.suppress(OSError):
                value = os.pread(self._descriptor, len(self), self._offset)
                if len(value) == len(self):
                    return value
        return bytes(self.view)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedBytes) and self.view == other.view

    def __hash__(self) -> int:
        return hash(self.view)

    def private(self) -> memoryview:
        """A view that may be written to, and that nobody else sees. Raises MemoryError."""
        try:
            mapping = _Private(self._descriptor, len(self), mmap.MAP_PRIVATE, offset=self._offset)
        except OSError as error:
            raise MemoryError(str(error)) from error
        # Pages that are not written to are still the worker's.
        mapping.owner = self._owner
        return memoryview(mapping)


class _Private(mmap.mmap):
    owner: Any


class _Segment:
    """A segment that is mapped in this process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self._mapping = mmap.mmap(descriptor, size)
        # A type of its own, since only instances of a Python class can be watched by a weak reference.
        about = {"_type_": ctypes.c_ubyte, "_length_": size, "__hash__": object.__hash__}
        self._kind: Any = type("Lease", (ctypes.Array,), about)
        self._pid = os.getpid()
        self._pinned = pin(self._mapping)
        self._leases: set[weakref.ref[Any]] = set()

    def lend(self) -> tuple[Any, memoryview, int]:
        """What keeps it from being given back, a view of all of it, and its descriptor."""
        lease = self._kind.from_buffer(self._mapping)
        self._leases.add(weakref.ref(lease, self._given_back))
        return lease, memoryview(lease).cast("B").toreadonly(), self.descriptor

    def _given_back(self, lease: weakref.ref[Any]) -> None:
        self._leases.discard(lease)
        # A process that the model has forked has let go of its own copy only.
        if os.getpid() == self._pid:
            self._mapping[MARK_AT : MARK_AT + 1] = FREE

    def close(self) -> None:
        if self._pinned:
            unpin(self._mapping)
        # Still looked at, when the process ends: then it ends with its views.
        with contextlib.suppress(BufferError):
            self._mapping.close()
        os.close(self.descriptor)


class _SingleUse(mmap.mmap):
    """A segment whose mapping ends with the last view of it. The descriptor is for mappings that are private."""

    descriptor: int

    def __new__(cls, descriptor: int, size: int) -> Self:
        mapping = super().__new__(cls, descriptor, size, prot=mmap.PROT_READ)
        mapping.descriptor = descriptor
        return mapping

    def __del__(self) -> None:
        os.close(self.descriptor)

    def lend(self) -> tuple[Any, memoryview, int]:
        return self, memoryview(self), self.descriptor


class MappedSegments:
    """The receiving side of a child."""

    def __init__(self) -> None:
        self._kept: dict[int, _Segment] = {}

    def take(self, places: Sequence[Place], opened: Sequence[Opened], descriptors: Sequence[int]) -> list[SharedBytes]:
        segments: dict[int, _Segment | _SingleUse] = dict(self._kept)
        for each, descriptor in zip(opened, descriptors, strict=True):
            if each.kept:
                segments[each.segment] = self._kept[each.segment] = _Segment(descriptor, each.size)
            else:
                segments[each.segment] = _SingleUse(descriptor, each.size)
        try:
            views = {number: segments[number].lend() for number in {each.segment for each in places}}
        except KeyError as error:
            raise ValueError(f"segment {error} is unknown") from None
        return [SharedBytes(*views[each.segment], each) for each in places]

    def forget(self, closed: Sequence[int]) -> None:
        for number in closed:
            segment = self._kept.pop(number, None)
            if segment is not None:
                segment.close()

    def close(self) -> None:
        self.forget(list(self._kept))
