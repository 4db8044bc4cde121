"""The outbox: every request of one event-loop turn goes to Redis in one script call.

    greenlets ──put──▶ [ … ] ──one EVALSHA──▶ admitted: queued          refused: why, and when to come again
                                             │ repeated: whose outcome it gets
                                             └ Redis away: BackendUnavailable, at once, for the whole flush

Only one flush is under way at a time: the slower Redis is, the more requests go into each.
A flush whose connection broke is sent once more; `submit.lua` remembers what it has already queued. One that was not
answered in time may still run: its callers are refused, and its requests are cancelled once Redis answers again.

With `hold_s` a flush that fails is sent again, under the same id, until each of its requests has been held for that
long or has met its deadline. So callers wait while Redis fails over. `tasks.client.resend` is about those who were
accepted before.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import gevent
from gevent.event import Event
from msgspec import structs
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from batching.policy import Shed
from config.keys import Shard
from config.redis import Line, Script
from config.redis_errors import Meaning, meaning_of
from tasks.client.admission_args import AdmissionArgs
from tasks.client.admission_codes import QUEUED, answered, refusals
from tasks.client.flush import FlushWriter, Posted
from tasks.client.pending import Pending
from tasks.client.preview import Preview
from tasks.client.resend import LenientArgs, Recogniser, shortened
from tasks.errors import BackendUnavailable, BunchError, Refused
from tasks.observability.metrics import RESENT
from tasks.protocol.outgoing import Outgoing

logger = logging.getLogger(__name__)

MAX_FLUSH = 512
MAX_FLUSH_BYTES = 4 * 1024 * 1024

# Between two tries of a flush.
_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.2
# After a flush that failed, whatever may go elsewhere does for so long.
_AVOIDED_S = 1.0
# Requests that are sent again in one flush.
_AGAIN_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Receipt:
    """The queue has the request: the reply for a caller who does not wait."""

    task_id: str


class Beside:
    """The payloads of requests, which lie beside the queue (`tasks.client.payloads`): none."""

    def write_again(self, outs: Sequence[Outgoing]) -> None:
        """Write those of requests that go to another server than before. Raises RedisError."""

    def unused(self, out: Outgoing) -> None:
        """The request does not go to a worker."""


class Outbox:
    """Collects and flushes requests. `settle` wakes a refused caller, or one who waits for a receipt.

    `on_doubt` gets the task ids of a flush that may still run although its callers have been refused; `on_answered`
    each request that was answered from the cache, which no worker sees. `keep` gets what a queue has accepted of those
    who wait, with its bytes, and `kept` returns what of it has no answer yet; `lenient` is how that is sent again.
    `direct`: the models that are called without the queue while it is away; who waits for one is not held.
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
        keep: Callable[[Pending, Posted, int], None] = lambda pending, item, size: None,
        kept: Callable[[], list[Posted]] = list,
        lenient: LenientArgs | None = None,
        hold_s: float = 0.0,
        direct: Container[str] = (),
        payloads: Beside | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = Line(redis)
        self._rules = rules
        self._settle = settle
        self._on_doubt = on_doubt
        self._on_answered = on_answered
        self._keep = keep
        self._kept = kept
        self._lenient = lenient or rules
        self._hold_s = hold_s
        self._direct = direct
        self._payloads = payloads or Beside()
        self._clock = clock
        self._keys = shard or Shard()
        self._writer = FlushWriter(name, self._keys)
        self.preview = Preview(redis, rules, self._writer, self._avoid)
        self._recogniser = Recogniser(self._line, self._keys)
        self._again = False
        # Whoever was submitted before this time may have waited behind a flush that was held; 0: nobody.
        self._held_until = 0.0
        self._items: list[Posted] = []
        # When the flush that is under way began, and when one failed last.
        self._began_at = math.inf
        self._failed_at = -math.inf
        self._wake = Event()
        self._script = Script(rules.script)
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.flushes = 0
        # How many times a new server was asked what it has.
        self.recognised = 0

    @property
    def has_unsent(self) -> bool:
        """True if requests wait for the next flush."""
        return bool(self._items)

    def is_troubled(self, late_s: float) -> bool:
        """Return whether a flush takes longer than `late_s`, or failed a moment ago: what may go elsewhere should."""
        now = self._clock()
        return now - self._began_at > late_s or now - self._failed_at < _AVOIDED_S

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
        self._line.close()
        self.preview.close()

    def put(self, out: Outgoing, rest: bytes, pending: Pending, *, receipt: bool = False) -> None:
        self._items.append(Posted(out, rest, pending, receipt))
        self._wake.set()

    def send_again(self) -> None:
        """Another server answers than before: send what it does not have of those who wait."""
        self._again = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            # While Redis was slow some callers may have given up: their requests need not be queued.
            taken = self._next()
            batch = [item for item in taken if not item.pending.done]
            if len(batch) < len(taken):
                self._not_sent(item for item in taken if item.pending.done)
            if batch:
                self._began_at = self._clock()
                self._submit(batch)
                self._began_at = math.inf
            # After the flush, which may still have gone to the server before.
            if self._again:
                self._send_lost()

    def _submit(self, batch: list[Posted]) -> None:
        self.flushes += 1
        pause_s = _FIRST_PAUSE_S
        sent = batch
        if self._held_until and _waits_since(batch[0]) >= self._held_until:
            self._held_until = 0.0
        if self._held_until:
            # They have waited behind a flush that was held; nobody may compute for them beyond their deadlines.
            sent = self._late(batch)
        while True:
            try:
                if sent is not batch and pause_s > _FIRST_PAUSE_S:
                    # Another server may answer than the one that has their payloads.
                    self._payloads.write_again([item.out for item in sent])
                statuses = self._flush(sent, self._rules)
            except (RedisError, OSError) as error:
                self._avoid()
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("could not queue %d requests: %s", len(batch), error)
                if not self._may_pass(batch, error):
                    return
            except Exception:
                logger.exception("could not queue %d requests; their callers are told to try again", len(batch))
                self._refuse(batch, BackendUnavailable("the request could not be queued; try again shortly"))
                return
            else:
                self._report(batch, statuses)
                return
            gevent.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)
            # All of them, in their order, as the server may have answered this flush before.
            sent = self._late(batch)
            self._held_until = self._clock()

    def _may_pass(self, batch: list[Posted], error: Exception) -> bool:
        """Refuse whoever has been held for long enough; return whether any of the flush is held on."""
        meaning = meaning_of(error)
        hold_s = self._hold_s if meaning in {Meaning.ANEW, Meaning.LATER} else 0.0
        now = self._clock()
        over = [item for item in batch if not item.pending.done and self._ends(item, hold_s) <= now]
        left = len(over) < sum(not item.pending.done for item in batch)
        text = "the queue takes no requests now" if meaning is Meaning.FULL else "the queue is not reachable"
        refusal = BackendUnavailable(f"{text}; try again shortly")
        self._refuse(over, refusal)
        if isinstance(error, RedisTimeoutError) or hold_s:
            # Any of the tries may still run.
            doubtful = [item.out.task_id for item in over if not item.pending.runs_on]
            if doubtful:
                self._on_doubt(doubtful)
        else:
            # Whoever gave up meanwhile is among them. In doubt, payloads stay for their minute: a worker may need them.
            self._not_sent(item for item in batch if item.pending.done)
        if left:
            # Those behind them wait for the same server.
            behind = [item for item in self._items if self._ends(item, hold_s) <= now]
            self._items = [item for item in self._items if self._ends(item, hold_s) > now]
            self._refuse(behind, refusal)
            self._not_sent(behind)
        return left

    def _ends(self, item: Posted, hold_s: float) -> float:
        """The time until which a request is held; in the past if it is not."""
        # Whoever polls, or has a key, needs the queue.
        goes_on = item.out.submission.model in self._direct and not item.receipt and not item.pending.runs_on
        return -math.inf if goes_on or not hold_s else _waits_since(item) + hold_s

    def _send_lost(self) -> None:
        self._again = False
        waiting = [item for item in self._kept() if not item.pending.done]
        if not waiting:
            return
        try:
            verdicts = self._recogniser.lost([item.out for item in waiting])
            lost = [item for item, is_lost in zip(waiting, verdicts, strict=True) if is_lost]
            for start in range(0, len(lost), _AGAIN_AT_ONCE):
                self._send_again(lost[start : start + _AGAIN_AT_ONCE])
            self.recognised += 1
        except (RedisError, OSError) as error:
            if meaning_of(error) is Meaning.NEVER:
                logger.warning("could not find out which of %d waiting requests were lost: %s", len(waiting), error)
                return
            # It failed over again, or is not there yet; what was sent is recognised then.
            self.send_again()
            gevent.sleep(_FIRST_PAUSE_S)
        except Exception:
            # All requests of this process depend on this one greenlet.
            logger.exception("could not send again what was lost of %d waiting requests", len(waiting))
        else:
            logger.warning(
                "Redis is another server than before: of %d waiting requests it did not have %d, which were sent again",
                len(waiting),
                len(lost),
            )

    def _send_again(self, items: list[Posted]) -> None:
        self.flushes += 1
        again = self._late(items)
        self._payloads.write_again([item.out for item in again])
        self._report(again, self._flush(again, self._lenient))
        RESENT.inc(len(again))

    def _late(self, items: Sequence[Posted]) -> list[Posted]:
        """The same with the times that are left of them. Nobody shall compute what has ended meanwhile."""
        now = self._clock()
        late_ms = [
            item.out.deadline_ms
            if item.pending.done and not item.pending.runs_on
            else int((now - _waits_since(item)) * 1000)
            for item in items
        ]
        return [structs.replace(item, out=shortened(item.out, each)) for item, each in zip(items, late_ms, strict=True)]

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

    def _flush(self, batch: list[Posted], rules: AdmissionArgs) -> bytes:
        return cast("bytes", self._line.script(self._script, *self._writer.call(batch, rules, self.flushes)))

    def _report(self, batch: list[Posted], answer: bytes) -> None:
        if answer.strip(QUEUED):
            outs = [item.out for item in batch]
            for out in answered(answer, outs):
                self._on_answered(out)
                self._payloads.unused(out)
            for item, error in zip(batch, refusals(answer, outs), strict=True):
                if error is not None:
                    if isinstance(error, Refused) and error.reason == Shed.MEMORY.value:
                        self._avoid()
                    self._payloads.unused(item.out)
                    self._settle(item.pending, error)
                else:
                    self._accepted(item)
            return
        for item in batch:
            self._accepted(item)

    def _avoid(self) -> None:
        """Note a failure: what may go elsewhere goes there for a while."""
        self._failed_at = self._clock()

    def _not_sent(self, items: Iterable[Posted]) -> None:
        for item in items:
            self._payloads.unused(item.out)

    def _accepted(self, item: Posted) -> None:
        pending = item.pending
        if item.receipt:
            self._settle(pending, Receipt(item.out.task_id))
        elif pending.sent is None and not pending.done:
            size = len(item.rest) + (item.out.blob.size if item.out.blob is not None else 0)
            self._keep(pending, item, size)

    def _refuse(self, batch: list[Posted], error: BunchError) -> None:
        for item in batch:
            self._settle(item.pending, error)


def _waits_since(item: Posted) -> float:
    return item.pending.deadline - item.out.deadline_ms / 1000
