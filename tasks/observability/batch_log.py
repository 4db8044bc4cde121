"""The batch log: the outcome of every request of the last hour, and of failed requests of the last day.

    worker: settled batches ─┐
                             ├─▶ rows, some hundred requests compressed together ─▶ bunch:record:all
    frontend: refused        ┘                                  failed ones also ─▶ bunch:record:failed

No request has a key of its own. A task id begins with its time, roughly, and each entry of a stream has the time at
which it was written, so finding a request reads few entries. An id that Bunch did not make has no time: then all are
read.

Each of the two streams has a maximum size. Beyond it the oldest entries go; `reach` says from when on all is known.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from redis import Redis

from batching.claim.lease import Lease
from batching.fast_header import read_fast_header
from config.keys import Shard
from config.tiers import TIERS
from tasks.protocol.ids import belongs_to, made_at_ms
from tasks.script_args import JOURNAL, BatchLogArgs, BatchLogKeys

HOUR_MS = 3_600_000
FAILED_FOR_MS = 24 * HOUR_MS
# One part in so many of the maximum size is reserved for failures.
FAILED_PART = 4
DEFAULT_MAX_BYTES = 67_108_864
_ALL, _FAILED = "all", "failed"
# The outcome of a member that its batch did not settle.
UNSETTLED = "-"
# Outcomes that are no failure, and are not kept for a day.
_NO_FAILURE = frozenset({"OK", "CANCELLED", UNSETTLED})
# Before compression: large enough to compress well, small enough to be read on a frontend's event loop.
_CHUNK_BYTES = 262_144
# A task id has the frontend's time, in steps of four seconds; entries have Redis' time.
_CLOCKS_MS = 15_000
# How long after its end a batch may be written.
_LATE_MS = 3_000
_PAGE = 32


class Member(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One request of a batch. Times are milliseconds: from its frontend to the queue, and until its claim; -1 if not
    known.

    `code` is OK, a code of the contract, or `-`. `request_id` is the caller's own id, `error` one line with the reason.
    """

    id: str
    rank: int
    attempt: int
    admission_ms: int = -1
    queue_ms: int = -1
    code: str = UNSETTLED
    request_id: str = ""
    error: str = ""

    @property
    def tier(self) -> str:
        return TIERS[self.rank].value


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch from its claim to its end. `why` is the reason if it ended without an outcome for each request, else
    empty.

    The requests in `joined` share a member's outcome and were in no batch. A record without an `id` is of requests that
    were in no batch, for the reason `why`.
    """

    id: str = ""
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
    joined: Sequence[Member] = ()

    def of(self, name: str, owner: str = "") -> Member | None:
        """The request with this task id, or with this request id of its caller, if `owner` may know of it."""
        named = (each for each in (*self.members, *self.joined) if name in {each.id, each.request_id})
        return next((each for each in named if belongs_to(each.id, owner)), None)


class OkRecord(BatchRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a batch in which every request has an output, with the JSON of its members."""

    members: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Reach:
    """The Redis time in ms since which every request is known; `cut`: limited by size, not by age."""

    since_ms: float
    now_ms: float
    cut: bool

    @property
    def seconds(self) -> float:
        return (self.now_ms - self.since_ms) / 1000


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BatchRecord).decode


class BatchLog:
    """Writes and reads the batch log, of at most `max_bytes`. Every method raises RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._failed_bytes = max_bytes // FAILED_PART
        self._bytes = max_bytes - self._failed_bytes
        self._add = redis.register_script(JOURNAL.text)

    def write(self, records: Iterable[BatchRecord]) -> None:
        """Write records: one round trip, and a second one if any of their requests failed."""
        written = list(records)
        for which, age_ms, most, chosen in (
            (_ALL, HOUR_MS, self._bytes, written),
            (_FAILED, FAILED_FOR_MS, self._failed_bytes, _failed(written)),
        ):
            if chosen:
                names = BatchLogKeys(record=self._keys.record(which), size=self._keys.record_size(which))
                self._add(keys=names, args=[*BatchLogArgs(age_ms=age_ms, max_bytes=most), *_packed(chosen)])

    def lost(self, worker: str, batch_id: str, lease: Lease) -> None:
        """Record a batch whose worker died without recording it."""
        members: list[Member] = []
        for entry in lease.entries:
            header = read_fast_header(entry.message)
            if header is not None:
                members.append(Member(header.task_id, entry.rank, header.attempt + 1))
        self.write([BatchRecord(id=batch_id, model=lease.model, worker=worker, why="its worker died", members=members)])

    def records(self, since_ms: float = 0) -> Iterator[BatchRecord]:
        """Every batch recorded since then, within the last hour, oldest first."""
        for _, rows in self._entries(_ALL, since_ms):
            yield from map(_decode, rows.split(b"\n"))

    def find(self, name: str, owner: str = "") -> list[tuple[BatchRecord, Member]]:
        """The batches that a request was in, oldest first, by its task id or its caller's own request id.

        For a request that ended more than an hour ago, the batch that it failed in. If a caller gave several requests
        one id, the batches of all of them. `owner`: only requests that it may know of.
        """
        made = made_at_ms(name, self._now_ms())
        return self._search(_ALL, name, owner, made) or self._search(_FAILED, name, owner, made)

    def reach(self) -> Reach:
        """The time range that the log of all requests covers."""
        now_ms = self._now_ms()
        cut = float(cast("bytes | None", self._redis.hget(self._keys.record_size(_ALL), "cut")) or 0)
        hour = now_ms - HOUR_MS
        return Reach(max(cut, hour), now_ms, cut > hour)

    def _search(self, which: str, name: str, owner: str, made_ms: float | None) -> list[tuple[BatchRecord, Member]]:
        needle = _encode(name)
        found: list[tuple[BatchRecord, Member]] = []
        until_ms = float("inf")
        for at_ms, rows in self._entries(which, 0 if made_ms is None else made_ms - _CLOCKS_MS):
            if at_ms > until_ms:
                break
            if needle not in rows:
                continue
            for record in (_decode(row) for row in rows.split(b"\n") if needle in row):
                mine = record.of(name, owner)
                if mine is None:
                    continue
                found.append((record, mine))
                if mine.code != UNSETTLED and made_ms is not None:
                    until_ms = at_ms + _LATE_MS
        return sorted(found, key=lambda each: each[0].claimed_ms)

    def _entries(self, which: str, since_ms: float) -> Iterator[tuple[int, bytes]]:
        name, first = self._keys.record(which), f"{max(0, int(since_ms))}"
        while True:
            page = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._redis.xrange(name, first, count=_PAGE))
            for entry_id, fields in page:
                yield int(entry_id.partition(b"-")[0]), zlib.decompress(fields[b"rows"])
            if len(page) < _PAGE:
                return
            first = f"({page[-1][0].decode()}"

    def _now_ms(self) -> float:
        seconds, micros = self._redis.time()
        return seconds * 1000 + micros / 1000


def _failed(records: Iterable[BatchRecord]) -> list[BatchRecord]:
    """The records with only their failed members; refusals at admission are left out."""
    found = []
    for record in records:
        if not record.id or isinstance(record, OkRecord):
            continue
        members = [each for each in record.members if each.code not in _NO_FAILURE]
        joined = [each for each in record.joined if each.code not in _NO_FAILURE]
        if members or joined:
            found.append(msgspec.structs.replace(record, members=members, joined=joined))
    return found


def _packed(records: Iterable[BatchRecord]) -> Iterator[bytes]:
    rows: list[bytes] = []
    size = 0
    for record in records:
        row = _encode(record)
        if rows and size + len(row) > _CHUNK_BYTES:
            yield zlib.compress(b"\n".join(rows), 1)
            rows, size = [], 0
        rows.append(row)
        size += len(row)
    if rows:
        yield zlib.compress(b"\n".join(rows), 1)
