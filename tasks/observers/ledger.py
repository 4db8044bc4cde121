"""The worker's side of the ledger: a row for each settled request, sent a few times a second.

A row is noted after the outcome is stored, and only if this worker stored it: a batch that two workers ran is there
once. A killed worker loses the rows of its last quarter of a second.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from batching.ports import BatchInfo, NullObserver
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from tasks.accounts.ledger import CANCELLED, COMPLETED, FAILED, LedgerBuffer, RowGroup, bounded_id
from tasks.protocol.results import code_of

FLUSH_EVERY_S = 0.25
# More batches than a worker ever holds.
_MAX_OPEN = 1024


class LedgerObserver(NullObserver):
    """`batching.ports.Observer` of every claim loop of one worker. `clock` is monotonic seconds."""

    def __init__(self, buffer: LedgerBuffer, clock: Callable[[], float] = time.monotonic) -> None:
        self._buffer = buffer
        self._clock = clock
        self._claimed_at: OrderedDict[str, float] = OrderedDict()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flush_forever, name="ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._buffer.flush()

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        self._claimed_at[batch.batch_id] = self._clock()
        if len(self._claimed_at) > _MAX_OPEN:
            self._claimed_at.popitem(last=False)

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        if not settled:
            return
        # By Redis' clock, like the request's other times: the time of the claim plus what has passed since by ours.
        since_s = self._clock() - self._claimed_at.get(batch.batch_id, self._clock())
        completed_ms = batch.claimed_ms + round(since_s * 1000)
        # A request that never reached the model has not used the attempt that it was claimed for.
        unused = 0 if batch.compute_s else 1
        groups: dict[tuple[object, ...], RowGroup] = {}
        for request, outcome in settled:
            # The common case, told apart without looking at the rest.
            status, error = (COMPLETED, None) if type(outcome) is Ok else (_status(outcome), code_of(outcome) or None)
            alike = (request.owner, request.tier, status, request.attempt, error, request.client_id)
            group = groups.get(alike)
            if group is None:
                attempts = request.attempt - unused
                group = groups[alike] = RowGroup(
                    *([], [], request.owner, request.tier.value, batch.model, status, completed_ms, attempts, error),
                    request.client_id or None,
                )
            group.ids.append(bounded_id(request.id))
            group.created_ms.append(request.enqueued_ms or batch.claimed_ms)
        for group in groups.values():
            self._buffer.note(group)

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self._claimed_at.pop(batch.batch_id, None)

    def _flush_forever(self) -> None:
        while not self._stop.wait(FLUSH_EVERY_S):
            self._buffer.flush()


def _status(outcome: Outcome) -> str:
    match outcome:
        case Ok():
            return COMPLETED
        case Cancelled():
            return CANCELLED
        case Rejected() | Failed() | Expired():
            return FAILED
