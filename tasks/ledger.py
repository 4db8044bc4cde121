"""The ledger on its way: what became of each request, from those who know it to the ops worker, who writes it down.

    worker: settled ─┐
                     ├─▶ LedgerBuffer ─several a second, some hundred rows each─▶ bunch:ledger ─▶ ops worker ─▶ database
    frontend: refused┘

Nobody waits for any of it. Where it is too much (the database is away for long, Redis is away for long) the newest rows
are dropped, and counted in `bunch_ledger_dropped_total`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from batching import scripts
from config.keys import Shard
from tasks import metrics

COMPLETED, FAILED, CANCELLED, REFUSED = "completed", "failed", "cancelled", "refused"
MAX_ROWS_AN_ENTRY = 500
# In the stream: some forty megabytes, or a minute and a half at 2,000 requests a second.
MAX_ROWS = 200_000
# In a process that cannot reach Redis.
MAX_BUFFERED = 50_000
_MAX_ID = 64


class LedgerRow(NamedTuple):
    """One request that ended. Times are epoch milliseconds; `error` is the contract's code, if it failed.

    The fields are the columns of the database, in their order: rows go there as they are.
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


class Entry(msgspec.Struct, frozen=True):
    """Some rows as they lie in the stream."""

    id: str
    rows: list[LedgerRow]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[LedgerRow]).decode


class LedgerStream:
    """The stream in Redis. Raises RedisError throughout."""

    def __init__(self, redis: Redis, shard: Shard | None = None, max_rows: int = MAX_ROWS) -> None:
        self._redis = redis
        self._max_rows = max_rows
        keys = shard or Shard()
        self._names = [keys.ledger(), keys.ledger_rows()]
        folder = scripts.folder_of(__file__)
        self._record = redis.register_script(scripts.source("record", folder))
        self._forget = redis.register_script(scripts.source("forget", folder))

    def add(self, rows: Sequence[LedgerRow]) -> bool:
        """False when there is no room, and nothing was added."""
        return bool(self._record(keys=self._names, args=[self._max_rows, len(rows), _encode(rows)]))

    def oldest(self, count: int) -> list[Entry]:
        """Up to `count` entries, which stay until they are forgotten."""
        found = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._redis.xrange(self._names[0], count=count))
        return [Entry(entry_id.decode(), _readable(fields)) for entry_id, fields in found]

    def forget(self, entries: Sequence[Entry]) -> None:
        """They are in the database. Saying so twice changes nothing."""
        args: list[str | int] = []
        for entry in entries:
            args += (entry.id, len(entry.rows))
        self._forget(keys=self._names, args=args)


class LedgerBuffer:
    """One process's rows until the next flush. `note` is for any thread, and costs an append."""

    def __init__(self, stream: LedgerStream) -> None:
        self._stream = stream
        self._rows: deque[LedgerRow] = deque()

    def note(self, row: LedgerRow) -> None:
        if len(self._rows) >= MAX_BUFFERED:
            metrics.LEDGER_DROPPED.labels("redis_away").inc()
            return
        self._rows.append(row)

    def flush(self) -> None:
        """Send what there is; it stays, up to a bound, when Redis cannot be reached. Does not raise."""
        while self._rows:
            rows = [self._rows.popleft() for _ in range(min(len(self._rows), MAX_ROWS_AN_ENTRY))]
            try:
                if not self._stream.add(rows):
                    metrics.LEDGER_DROPPED.labels("stream_full").inc(len(rows))
            except RedisError:
                # Perhaps it came through: the database takes no row twice.
                self._rows.extendleft(reversed(rows))
                return

    def __len__(self) -> int:
        return len(self._rows)


def _readable(fields: dict[bytes, bytes]) -> list[LedgerRow]:
    """Nobody but us writes here; what somebody did all the same must not stand in the way of the rest."""
    try:
        return _decode(fields.get(b"rows", b"[]"))
    except msgspec.MsgspecError:
        return []


def bounded_id(task_id: str) -> str:
    """A Celery client may call its tasks what it likes."""
    return task_id if len(task_id) <= _MAX_ID and "\0" not in task_id else task_id[:_MAX_ID].replace("\0", "")
