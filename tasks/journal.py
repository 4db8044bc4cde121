"""What a worker writes down of each batch, so that `explain` can tell later where a request's time went.

One record a batch, not one a request: `bunch:batch:<id>`, found by the batch id that every result carries. Only a
request that a batch did *not* settle gets a key of its own, naming the batches of its earlier attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
from redis import Redis

from batching.stamp import read_stamp
from batching.store import parse_entries
from config.keys import Shard
from config.tiers import TIERS

# For whoever asks about a request that nobody keeps the result of.
MIN_KEPT_MS = 60_000
# The outcome of a member that its batch did not settle.
UNSETTLED = "-"
_SCANNED = 1000


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request of a batch. Times are epoch ms, 0 unknown; `code` is OK, one of the contract's, or `-`."""

    id: str
    rank: int
    attempt: int
    sent_ms: int
    enqueued_ms: int
    code: str = UNSETTLED

    @property
    def tier(self) -> str:
        return TIERS[self.rank].value


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch from its claim to its end. `why` it ended otherwise than with an outcome for each, or empty."""

    id: str
    model: str
    version: str = ""
    worker: str = ""
    executor: str = ""
    reason: str = ""
    claimed_ms: int = 0
    wait_ms: float = 0.0
    turn_ms: float = 0.0
    compute_ms: float = 0.0
    reply_ms: float = 0.0
    passes: int = 1
    why: str = ""
    members: Sequence[Member] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BatchRecord).decode


class Journal:
    """Writes and reads the records. All raise RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()

    def write(self, records: Iterable[tuple[BatchRecord, int]]) -> None:
        """Each with how long to keep it, in ms; one round trip."""
        pipeline = self._redis.pipeline(transaction=False)
        for record, keep_ms in records:
            kept_ms = max(MIN_KEPT_MS, keep_ms)
            pipeline.set(self._keys.batch(record.id), _encode(record), px=kept_ms)
            for each in record.members:
                if each.code == UNSETTLED:
                    key = self._keys.attempts(each.id)
                    pipeline.rpush(key, record.id)
                    pipeline.pexpire(key, kept_ms)
        pipeline.execute()

    def lost(self, worker: str, model: str, batch_id: str, entries: Sequence[bytes]) -> None:
        """A batch whose worker is dead and could write nothing down; `entries` as they lie in its lease."""
        members: list[Member] = []
        keep_ms = 0
        for entry in parse_entries(entries):
            stamp = read_stamp(entry.message)
            if stamp is not None:
                attempt = stamp.attempt + 1
                members.append(Member(stamp.task_id, entry.rank, attempt, 0, stamp.enqueued_ms))
                keep_ms = max(keep_ms, stamp.result_ttl_ms)
        record = BatchRecord(id=batch_id, model=model, worker=worker, why="its worker died", members=members)
        self.write([(record, keep_ms)])

    def batch(self, batch_id: str) -> BatchRecord | None:
        raw = cast("bytes | None", self._redis.get(self._keys.batch(batch_id)))
        return _decode(raw) if raw else None

    def records(self) -> Iterator[BatchRecord]:
        """Every one there is, in no order. Goes through all keys of Redis, a thousand at a time: not for every day."""
        cursor = 0
        while True:
            cursor, names = cast(
                "tuple[int, list[bytes]]", self._redis.scan(cursor, match=self._keys.batch("*"), count=_SCANNED)
            )
            raws = cast("list[bytes | None]", self._redis.mget(names)) if names else []
            yield from (_decode(raw) for raw in raws if raw)
            if not cursor:
                return

    def earlier(self, task_id: str) -> list[BatchRecord]:
        """The batches that a request was in before, the oldest first."""
        ids = cast("list[bytes]", self._redis.lrange(self._keys.attempts(task_id), 0, -1))
        names = [self._keys.batch(each.decode()) for each in ids]
        raws = cast("list[bytes | None]", self._redis.mget(names)) if names else []
        return [_decode(raw) for raw in raws if raw]
