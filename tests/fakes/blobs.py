"""The twin in memory of the store of blobs, with errors on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batching.blobs.reference import BlobRef
from batching.blobs.store import BlobGoneError, NoRoomError, Room, Usage
from config.redis_bytes import Buffer

_ROOM = Room()


@dataclass
class _Blob:
    value: bytes
    ends_at: float
    kept_at: int = 0


class MemoryBlobs:
    """`BlobStore` in a dictionary. `before` is called with the name of each call: its callers get the errors of it."""

    def __init__(self, room: Room = _ROOM, before: Callable[[str], None] = lambda call: None) -> None:
        self._room = room
        self._blobs: dict[str, _Blob] = {}
        self._kept = 0
        self.before = before

    @property
    def blobs(self) -> dict[str, bytes]:
        now = time.monotonic()
        self._blobs = {name: each for name, each in self._blobs.items() if each.ends_at > now}
        return {name: each.value for name, each in self._blobs.items()}

    def ends_in_s(self, blob_id: str) -> float:
        return self._blobs[blob_id].ends_at - time.monotonic()

    def put(self, ref: BlobRef, value: Buffer, ttl_ms: int) -> None:
        self.before("put")
        others = sum(len(each) for name, each in self.blobs.items() if name != ref.id)
        if 0 < self._room.max_bytes < others + ref.size:
            raise NoRoomError("no room")
        self._blobs[ref.id] = _Blob(bytes(value), time.monotonic() + ttl_ms / 1000)

    def get(self, ref: BlobRef) -> bytearray:
        self.before("get")
        value = self.blobs.get(ref.id, b"")
        if len(value) != ref.size or not ref.fits(value):
            raise BlobGoneError("gone")
        return bytearray(value)

    def release(self, blob_ids: Sequence[str]) -> int:
        self.before("release")
        return sum(name in self.blobs and bool(self._blobs.pop(name)) for name in blob_ids)

    def extend(self, blob_id: str, ttl_ms: int, *, keep: bool) -> bool:
        self.before("extend")
        if blob_id not in self.blobs:
            return False
        blob = self._blobs[blob_id]
        blob.ends_at = time.monotonic() + ttl_ms / 1000
        self._kept += 1
        blob.kept_at = (blob.kept_at or self._kept) if keep else 0
        # Of one point in time, as in Redis: this one may be over before the next line.
        kept = sorted((each.kept_at, name) for name, each in self._blobs.items() if each.kept_at)
        surplus = sum(len(self._blobs[name].value) for _, name in kept) - self._room.max_kept_bytes
        while surplus > 0:
            _, oldest = kept.pop(0)
            surplus -= len(self._blobs.pop(oldest).value)
        return blob_id in self._blobs

    def usage(self) -> Usage:
        sizes = [len(each) for each in self.blobs.values()]
        kept = [len(each.value) for each in self._blobs.values() if each.kept_at]
        return Usage(len(sizes), sum(sizes), sum(kept))
