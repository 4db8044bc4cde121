"""The outbox: every request of one event-loop turn goes to Redis in one script call.

    greenlets ──put──▶ [ … ] ──one EVALSHA──▶ admitted: queued          refused: why, and when to come again
                                             │ repeated: whose outcome it gets
                                             └ Redis away: BackendUnavailable, at once, for the whole flush

Only one flush is under way at a time: the slower Redis is, the more requests go into each.
A flush whose connection broke is sent once more; `submit.lua` remembers what it has already queued. One that was not
answered in time may still run: its callers are refused, and its requests are cancelled once Redis answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gevent
import msgspec
from gevent.event import Event
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.keys import Shard, reply_channel
from config.redis import Line, Script
from tasks.client.admission_args import AdmissionArgs
from tasks.client.admission_codes import QUEUED, answered, refusals
from tasks.client.router import Pending
from tasks.errors import BackendUnavailable, BunchError
from tasks.protocol.outgoing import Outgoing
from tasks.script_args import ClassRow, FlushArgs, FlushHeader, FlushKeys, RunRow

logger = logging.getLogger(__name__)

MAX_FLUSH = 512
MAX_FLUSH_BYTES = 4 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode


class Posted(msgspec.Struct):
    out: Outgoing
    rest: bytes
    pending: Pending
    receipt: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """The queue has the request: the reply for a caller who does not wait."""

    task_id: str


class Outbox:
    """Collects and flushes requests. `settle` wakes a refused caller, or one who waits for a receipt.

    `on_doubt` gets the task ids of a flush that may still run although its callers have been refused; `on_answered`
    each request that was answered from the cache, which no worker sees.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        rules: AdmissionArgs,
        settle: Callable[[Pending, object], None],
        shard: Shard | None = None,
        on_doubt: Callable[[list[str]], None] = lambda task_ids: None,
        on_answered: Callable[[Outgoing], None] = lambda out: None,
    ) -> None:
        self._name = name
        self._channel = reply_channel(name)
        self._line = Line(redis)
        self._rules = rules
        self._settle = settle
        self._on_doubt = on_doubt
        self._on_answered = on_answered
        self._keys = shard or Shard()
        self._items: list[Posted] = []
        self._wake = Event()
        self._script = Script(rules.script)
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.flushes = 0

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
        self._line.close()

    def put(self, out: Outgoing, rest: bytes, pending: Pending, *, receipt: bool = False) -> None:
        self._items.append(Posted(out, rest, pending, receipt))
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            # While Redis was slow some callers may have given up: their requests need not be queued.
            batch = [item for item in self._next() if not item.pending.done]
            if not batch:
                continue
            try:
                statuses = self._flush(batch)
            except (RedisError, OSError) as error:
                logger.warning("could not queue %d requests: %s", len(batch), error)
                self._refuse(batch, BackendUnavailable("the queue is not reachable; try again shortly"))
                if isinstance(error, RedisTimeoutError):
                    self._on_doubt([item.out.task_id for item in batch if not item.pending.runs_on])
            except Exception:
                logger.exception("could not queue %d requests; their callers are told to try again", len(batch))
                self._refuse(batch, BackendUnavailable("the request could not be queued; try again shortly"))
            else:
                self._report(batch, statuses)

    def _next(self) -> list[Posted]:
        size = 0
        count = 0
        for item in self._items:
            size += len(item.rest)
            count += 1
            if count >= MAX_FLUSH or size >= MAX_FLUSH_BYTES:
                break
        batch, self._items = self._items[:count], self._items[count:]
        if not self._items:
            self._wake.clear()
        return batch

    def _flush(self, batch: list[Posted]) -> bytes:
        self.flushes += 1
        models: dict[str, int] = {}
        # Requests without a quota use the queue's name as their class: the common case, without a tuple for each. If a
        # key's limits have just changed, the rest of the flush uses the old ones.
        classes: dict[object, int] = {}
        quotas: dict[str, int] = {}
        keys = [*FlushKeys(flush=self._keys.flush(f"{self._name}:{self.flushes}"), arrivals=self._keys.arrivals())]
        rows: list[ClassRow] = []
        # Neighbours' common fields are sent once: each run, and where its messages begin.
        runs: list[tuple[int, int, int, int]] = []
        starts: list[int] = []
        messages: list[Any] = []
        known = False
        run: tuple[int, int, int, int] | tuple[()] = ()
        for item in batch:
            out = item.out
            kind: object = out.queue if out.quota is None else (out.queue, out.quota.key_id)
            named = out.request_key
            if out.once is not None:
                kind, named = (kind, True), out.once.words(named)
                known = True
            number = classes.get(kind)
            if number is None:
                number = classes[kind] = len(classes) + 1
                model = models.setdefault(out.submission.model, len(models) + 1)
                rows.append(self._rules.of_class(out, model, quotas))
            shared = (number, out.deadline_ms, out.queue_limit_ms, 2 if named else 1)
            if shared != run:
                run = shared
                runs.append(shared)
                starts.append(len(messages))
            if named:
                messages.append(named)
            messages.append(item.rest)
        for name in models:
            keys += self._rules.keys_of(name)
        keys += [self._keys.quota(key_id) for key_id in quotas]
        if known:
            keys += self._rules.known_keys
        header = FlushHeader(
            channel=self._channel,
            rules=self._rules.general,
            shares=self._rules.shares,
            depth_limits=[self._rules.depth_limit(name) for name in models],
            classes=rows,
            runs=[
                RunRow(*each, messages=(end - start) // each[3])
                for each, start, end in zip(runs, starts, [*starts[1:], len(messages)], strict=True)
            ],
        )
        args = (*FlushArgs(header=_encode(header)), *messages)
        return cast("bytes", self._line.script(self._script, keys, args))

    def _report(self, batch: list[Posted], answer: bytes) -> None:
        if answer.strip(QUEUED):
            outs = [item.out for item in batch]
            for out in answered(answer, outs):
                self._on_answered(out)
            for item, error in zip(batch, refusals(answer, outs), strict=True):
                if error is not None:
                    self._settle(item.pending, error)
                elif item.receipt:
                    self._settle(item.pending, Receipt(item.out.task_id))
            return
        for item in batch:
            if item.receipt:
                self._settle(item.pending, Receipt(item.out.task_id))

    def _refuse(self, batch: list[Posted], error: BunchError) -> None:
        for item in batch:
            self._settle(item.pending, error)
