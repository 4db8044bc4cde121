"""The ledger in transit: the outcome of each request, from worker or frontend through Redis to the ops worker.

    worker: settled ─┐
                     ├─▶ LedgerBuffer ─several a second, some hundred rows each─▶ bunch:ledger ─▶ ops worker ─▶ database
    frontend: refused┘

The rows of a batch differ only in who asked and when, so only that is sent for each row: a third of the bytes, and a
fifth of the work on either side.

No request waits for any of it. When the database or Redis is away for too long, the newest rows are dropped and
counted in `bunch_ledger_dropped_total`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from threading import Lock
from typing import NamedTuple, TypeAlias, cast

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from config.keys import Shard
from tasks.observability import metrics
from tasks.script_args import FORGET, RECORD, EntryRow, LedgerArgs, LedgerKeys

COMPLETED, FAILED, CANCELLED, REFUSED = "completed", "failed", "cancelled", "refused"
ROWS_AN_ENTRY = 500
# In the stream: about fifteen megabytes, or a minute and a half at 2,000 requests a second.
MAX_ROWS = 200_000
# In the memory of a process that cannot reach Redis.
MAX_BUFFERED = 50_000
_MAX_ID = 64


class LedgerRow(NamedTuple):
    """One finished request. Times are epoch milliseconds. `error` is the contract's code if the request failed;
    `client_id` names the owner's client that sent it, if the request said so.

    The fields are the columns of the database, in their order: rows are inserted as they are.
    """

    id: str
    owner: str
    tier: str
    model: str
    status: str
    created_ms: int
    completed_ms: int
    latency_ms: int
    attempts: int
    error: str | None = None
    client_id: str | None = None


# Positional, as the database driver takes it: a dictionary for each row would double the cost of the insert.
Row: TypeAlias = tuple[str, str, str, str, str, int, int, int, int, str | None, str | None]


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    """Rows of requests that ended together and alike: `ids[n]` was created at `created_ms[n]`."""

    ids: list[str]
    created_ms: list[int]
    owner: str
    tier: str
    model: str
    status: str
    completed_ms: int
    attempts: int
    error: str | None = None
    client_id: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Iterable[Row]:
        # The two times may come from different clocks.
        latency_ms = [max(0, self.completed_ms - each) for each in self.created_ms]
        alike = map(repeat, (self.owner, self.tier, self.model, self.status))
        completed, attempts = map(repeat, (self.completed_ms, self.attempts))
        last = map(repeat, (self.error, self.client_id))
        return zip(self.ids, *alike, self.created_ms, completed, latency_ms, attempts, *last, strict=False)


class Entry(msgspec.Struct, frozen=True):
    """One entry of the stream with its rows."""

    id: str
    rows: list[Row]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[RowGroup]).decode


class LedgerStream:
    """The stream in Redis. Every method raises RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None, max_rows: int = MAX_ROWS) -> None:
        self._redis = redis
        self._max_rows = max_rows
        keys = shard or Shard()
        self._names = LedgerKeys(ledger=keys.ledger(), rows=keys.ledger_rows())
        self._record = redis.register_script(RECORD.text)
        self._forget = redis.register_script(FORGET.text)

    def add(self, groups: Sequence[RowGroup]) -> bool:
        """Add rows. False when there is no room; then nothing was added."""
        count = sum(map(len, groups))
        args = LedgerArgs(max_rows=self._max_rows, added=count, rows=_encode(groups))
        return bool(self._record(keys=self._names, args=args))

    def oldest(self, count: int) -> list[Entry]:
        """Return up to `count` of the oldest entries. They stay in the stream until `forget`."""
        found = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._redis.xrange(self._names.ledger, count=count))
        return [Entry(entry_id.decode(), _readable(fields)) for entry_id, fields in found]

    def forget(self, entries: Sequence[Entry]) -> None:
        """Remove entries that the database has. Doing so twice changes nothing."""
        args: list[str | int] = []
        for entry in entries:
            args += EntryRow(entry_id=entry.id, rows=len(entry.rows))
        self._forget(keys=self._names, args=args)


class LedgerBuffer:
    """One process's rows until the next flush. `note` may be called from any thread. `len` counts rows."""

    def __init__(self, stream: LedgerStream) -> None:
        self._stream = stream
        self._groups: deque[RowGroup] = deque()
        self._lock = Lock()
        self._rows = 0

    def note(self, group: RowGroup) -> None:
        with self._lock:
            room = self._rows + len(group) <= MAX_BUFFERED
            if room:
                self._groups.append(group)
                self._rows += len(group)
        if not room:
            metrics.LEDGER_DROPPED.labels("redis_away").inc(len(group))

    def flush(self) -> None:
        """Send the buffered rows. When Redis cannot be reached they are kept, up to a bound. Does not raise."""
        while groups := self._next():
            count = sum(map(len, groups))
            try:
                if not self._stream.add(groups):
                    metrics.LEDGER_DROPPED.labels("stream_full").inc(count)
            except RedisError:
                # The script may have run all the same; the database ignores a row that it already has.
                with self._lock:
                    self._groups.extendleft(reversed(groups))
                    self._rows += count
                return

    def _next(self) -> list[RowGroup]:
        """Take as many rows as fit into one entry."""
        groups: list[RowGroup] = []
        count = 0
        with self._lock:
            while self._groups and count < ROWS_AN_ENTRY:
                groups.append(self._groups.popleft())
                count += len(groups[-1])
            self._rows -= count
        return groups

    def __len__(self) -> int:
        return self._rows


def _readable(fields: dict[bytes, bytes]) -> list[Row]:
    """Decode the rows of an entry; one that cannot be read, which only a stranger can have written, is skipped."""
    try:
        return [row for group in _decode(fields.get(b"rows", b"[]")) for row in group.rows()]
    except msgspec.MsgspecError:
        return []


def bounded_id(task_id: str) -> str:
    """A task id, cut to the length of the column: a Celery client may use any string."""
    return task_id if len(task_id) <= _MAX_ID and "\0" not in task_id else task_id[:_MAX_ID].replace("\0", "")
