"""The worker's side of the batch log: batches are noted in memory and written a few times a second.

    claim loops ──append──▶ [ … ] ──one script──▶ bunch:record:all, and bunch:record:failed

No caller waits for it: a record is written after its batch is settled, by a thread of its own. A killed worker loses
what it noted in its last moments, and nothing depends on that but `explain`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from redis.exceptions import RedisError

from batching.ports import BatchInfo
from batching.request import Cancelled, Failed, Ok, Outcome, Rejected, Request
from config.native import hot_path
from config.tiers import TIERS
from tasks.observability.batch_log import BatchLog, BatchRecord, Member, OkRecord
from tasks.observability.error_summary import error_summary
from tasks.protocol.results import code_of

logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 0.2
# Batches noted while Redis is away; beyond this the oldest are dropped.
_MAX_NOTED = 2000
_MAX_WHY = 500
_RANKS = {tier: tier.rank for tier in TIERS}


@dataclass(slots=True)
class _Open:
    """A batch that is not settled yet; `members` is keyed by position in the lease, so each is there once."""

    claimed_at: float = 0.0
    members: dict[int, Member] = field(default_factory=dict)
    joined: list[Member] = field(default_factory=list)
    why: str = ""


class BatchLogObserver:
    """`batching.ports.Observer`. Call `stop` after the loops have stopped. `worker` returns the worker's name."""

    def __init__(
        self, batch_log: BatchLog, worker: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._batch_log = batch_log
        self._worker = worker
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._noted: deque[BatchRecord] = deque(maxlen=_MAX_NOTED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self.flush()

    def flush(self) -> None:
        """Write the noted batches; those that Redis does not take are kept for the next flush."""
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        if not noted:
            return
        try:
            self._batch_log.write(noted)
        except RedisError as error:
            logger.debug("could not write %d batches to the batch log; the next flush retries: %s", len(noted), error)
            self._noted.extendleft(reversed(noted))

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        self._of(batch).claimed_at = self._clock()

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        known = self._of(batch)
        is_whole = known.claimed_at and not (known.members or known.joined)
        rows = _members_of(settled, batch) if is_whole else None
        if rows is not None:
            # Nearly always.
            self._end(known, batch, rows)
            return
        members, claimed_ms = known.members, batch.claimed_ms
        # Runs for every request: nothing is called here that is not needed.
        for request, outcome in settled:
            enqueued_ms = request.enqueued_ms
            code, error = ("OK", "") if type(outcome) is Ok else _told(outcome)
            member = Member(
                request.id,
                _RANKS[request.tier],
                request.attempt,
                max(0, enqueued_ms - request.sent_ms) if enqueued_ms and request.sent_ms else -1,
                max(0, claimed_ms - enqueued_ms) if enqueued_ms else -1,
                code,
                request.request_id,
                error,
            )
            if request.position < 0:
                # It shares a member's outcome, and was in no batch.
                known.joined.append(member)
            else:
                members[request.position] = member
        # Requests that are settled at the claim are reported first, on their own; their batch follows.
        if not batch.size or known.claimed_at:
            self._end(known, batch)

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        known = self._of(batch)
        known.why = why
        self._add(known, requests, batch)

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        known = self._of(batch)
        known.why = why
        self._add(known, requests, batch)
        self._end(known, batch)

    def _of(self, batch: BatchInfo) -> _Open:
        return self._open.setdefault(batch.batch_id, _Open())

    @staticmethod
    def _add(known: _Open, unsettled: Sequence[Request], batch: BatchInfo) -> None:
        for each in unsettled:
            waited_ms = max(0, batch.claimed_ms - each.enqueued_ms) if each.enqueued_ms else -1
            member = Member(each.id, _RANKS[each.tier], each.attempt, queue_ms=waited_ms, request_id=each.request_id)
            known.members[each.position] = member

    def _end(self, known: _Open, batch: BatchInfo, rows: bytes = b"") -> None:
        """`rows` has the members as JSON, where all have an output."""
        self._open.pop(batch.batch_id, None)
        if not known.members and not known.joined and not rows:
            return
        took_s = self._clock() - known.claimed_at if known.claimed_at else 0.0
        record = (OkRecord if rows else BatchRecord)(
            id=batch.batch_id,
            model=batch.model,
            version=batch.version,
            worker=self._worker(),
            executor=batch.executor,
            reason=batch.reason.value,
            claimed_ms=batch.claimed_ms,
            wait_ms=_ms(batch.wait_s),
            turn_ms=_ms(batch.turn_s),
            compute_ms=_ms(batch.compute_s),
            reply_ms=_ms(max(0.0, took_s - batch.wait_s - batch.turn_s)) if batch.turn_s else 0.0,
            passes=batch.passes,
            why=known.why[:_MAX_WHY],
            members=msgspec.Raw(rows) if rows else tuple(known.members.values()),  # type: ignore[arg-type]
            joined=tuple(known.joined),
        )
        self._noted.append(record)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_EVERY_S):
            try:
                self.flush()
            except Exception:
                logger.exception("could not write the batch log; the batches of this flush are lost")


# The members of a batch without a failure, in C; None where it was not compiled.
_members: Callable[..., bytes | None] | None = hot_path.members if hot_path is not None else None


def _members_of(settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> bytes | None:
    """The JSON of a `Member` for each; None where Python makes them, or where there are none."""
    if _members is None or not settled:
        return None
    return _members(settled, Request, Ok, _RANKS, batch.claimed_ms)


def _told(outcome: Outcome) -> tuple[str, str]:
    """The contract's code of an outcome without an output, and the line that gives the reason."""
    if isinstance(outcome, Cancelled):
        return "CANCELLED", ""
    if isinstance(outcome, Rejected | Failed):
        return code_of(outcome), error_summary(f"{outcome.exc_type}: {outcome.message}")
    return code_of(outcome), ""


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
