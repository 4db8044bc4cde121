"""The port to the blobs, and its Redis implementation.

    frontend ── reserve, SET ─▶ blob ──GETRANGE──▶ worker
    worker   ── release ──────▶ gone               at the outcome of its request
             ── extend ───────▶ kept               with its dead letter

Each blob expires by itself: an input a minute after its request's deadline, an output with its result. So whoever is
killed between two of these steps leaves nothing behind, and releasing only makes room sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, LifoQueue
from typing import Any, NamedTuple, Protocol

from redis import Redis
from redis.exceptions import ResponseError

from batching.blobs.local_files import LocalPayload
from batching.blobs.reference import BlobRef
from batching.script_args import (
    BLOB_EXTEND,
    BLOB_RELEASE,
    BLOB_RESERVE,
    BLOB_USAGE,
    BlobExtendArgs,
    BlobKeys,
    BlobReserveArgs,
    OneBlobKeys,
)
from config.keys import Shard
from config.redis import Script, connect
from config.redis_bytes import Buffer, BytesLine
from config.settings import Settings

GRACE_MS = 60_000
"""How long an input outlives its request's deadline: an executor may be working on it, and may die of it."""
_MAX_KEPT_BYTES = 256 * 1024 * 1024


class NoRoomError(Exception):
    """`NoRoomError(why)`: the blobs, or Redis, have all the memory that they may have."""


class BlobGoneError(Exception):
    """`BlobGoneError(why)`: there is no such blob any more, or it is not what its reference says."""


class Usage(NamedTuple):
    """The blobs that there are. `kept_bytes` are those of dead letters, which `all_bytes` includes."""

    blobs: int
    all_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """Limits: the bytes of all blobs (0: none), those of dead letters among them, and the share of Redis' memory that
    may be used for anything.
    """

    max_bytes: int = 0
    max_kept_bytes: int = _MAX_KEPT_BYTES
    memory: float = 0.8

    @classmethod
    def of(cls, settings: Settings) -> Room:
        most = settings.blobs_max_bytes
        kept = min(_MAX_KEPT_BYTES, most // 4) if most else _MAX_KEPT_BYTES
        return cls(most, kept, settings.max_memory_percent / 100)


class BlobStore(Protocol):
    """The blobs of one shard. Every call may be repeated; all raise RedisError."""

    def put(self, ref: BlobRef, value: Buffer, ttl_ms: int) -> None:
        """Write a blob. Raises NoRoomError."""

    def get(self, ref: BlobRef) -> Buffer | LocalPayload:
        """The bytes of a blob, whose hash has been checked. Raises BlobGoneError."""

    def release(self, blob_ids: Sequence[str]) -> int:
        """Delete blobs. Returns how many there were."""

    def extend(self, blob_id: str, ttl_ms: int, *, keep: bool) -> bool:
        """Let a blob live for `ttl_ms` from now; False if there is none. `keep`: with a dead letter. All of these
        together have a limit: then the oldest go.
        """

    def usage(self) -> Usage: ...


class RedisBlobs:
    """`BlobStore` over one Redis, for several threads or greenlets: so many calls at once, further ones wait."""

    def __init__(
        self, redis: Redis, shard: Shard | None = None, room: Room = Room(), *, calls_at_once: int = 4
    ) -> None:
        # The last one that was used: the others are opened only where calls meet.
        self._lines: Any = _queue_class(redis)(calls_at_once)
        for _ in range(calls_at_once):
            self._lines.put(BytesLine(redis))
        self._keys = shard or Shard()
        self._room = room
        keys = self._keys
        self._account = BlobKeys(keys.blobs(), keys.blob_sizes(), keys.blobs_kept(), keys.blob_bytes())
        self._reserve = Script(BLOB_RESERVE.text)
        self._release = Script(BLOB_RELEASE.text)
        self._extend = Script(BLOB_EXTEND.text)
        self._usage = Script(BLOB_USAGE.text)

    @contextmanager
    def _line(self) -> Iterator[BytesLine]:
        line = self._lines.get()
        try:
            yield line
        finally:
            self._lines.put(line)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with suppress(Empty):
            while True:
                self._lines.get_nowait().close()

    def _script(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        with self._line() as line:
            return line.script(script, keys, args)

    def put(self, ref: BlobRef, value: Buffer, ttl_ms: int) -> None:
        args = BlobReserveArgs(ref.id, ref.size, ttl_ms, self._room.max_bytes, self._room.memory)
        until_ms = self._script(self._reserve, self._account, args)
        if until_ms == 0:
            raise NoRoomError(f"large payloads have their {self._room.max_bytes} bytes already")
        if until_ms < 0:
            raise NoRoomError("the memory for large payloads is nearly full")
        try:
            with self._line() as line:
                line.put(self._keys.blob(ref.id), value, until_ms)
        except ResponseError:
            # Redis has refused the value, so that its room is free.
            self.release([ref.id])
            raise

    def get(self, ref: BlobRef) -> bytearray:
        value = bytearray(ref.size)
        self.get_into(ref, memoryview(value))
        return value

    def get_into(self, ref: BlobRef, buffer: memoryview) -> None:
        """Read a blob into a buffer of its size. Raises BlobGoneError, RedisError."""
        with self._line() as line:
            size = line.get_into(self._keys.blob(ref.id), buffer)
        if size != ref.size:
            raise BlobGoneError(f"the payload {ref.id} is not there any more")
        # One that was near is here because its request is a dead letter, and its number is no hash.
        if ref.near is not True and not ref.fits(buffer):
            raise BlobGoneError(f"the payload {ref.id} has another hash than its message says")

    def release(self, blob_ids: Sequence[str]) -> int:
        if not blob_ids:
            return 0
        names = map(self._keys.blob, blob_ids)
        gone: int = self._script(self._release, (*self._account, *names), tuple(blob_ids))
        return gone

    def extend(self, blob_id: str, ttl_ms: int, *, keep: bool) -> bool:
        keys = (*self._account, *OneBlobKeys(self._keys.blob(blob_id)))
        args = BlobExtendArgs(blob_id, ttl_ms, int(keep), self._room.max_kept_bytes)
        surplus = self._script(self._extend, keys, args)
        if isinstance(surplus, int):
            return False
        ids = [each.decode() for each in surplus]
        self.release(ids)
        return blob_id not in ids

    def usage(self) -> Usage:
        return Usage(*self._script(self._usage, self._account, ()))


def open_blobs(settings: Settings, redis: Redis, shard: Shard | None = None) -> RedisBlobs:
    """The store beside the queues in `redis`, or in a Redis of its own; nothing is opened before the first call."""
    if settings.blob_url and settings.blob_url != settings.redis_url:
        redis = connect(settings.blob_url, queue_class=_queue_class(redis))
    return RedisBlobs(redis, shard, Room.of(settings))


def _queue_class(redis: Redis) -> type[Any]:
    """The queue in which a client's connections wait: that of a frontend blocks one greenlet alone."""
    return getattr(redis.connection_pool, "queue_class", LifoQueue)
