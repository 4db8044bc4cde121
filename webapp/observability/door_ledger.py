"""The frontend's side of the ledger: requests that reach no worker, refused or answered from the cache."""

from __future__ import annotations

import time

import gevent

from tasks.accounts.ledger import COMPLETED, REFUSED, LedgerBuffer, RowGroup
from tasks.client.submission import Submission
from tasks.errors import BunchError
from tasks.protocol.ids import new_id
from tasks.protocol.outgoing import Outgoing

FLUSH_EVERY_S = 0.5
AT_THE_DOOR = frozenset({"SERVICE_OVERLOADED", "RATE_LIMITED", "BACKEND_UNAVAILABLE", "MODEL_UNAVAILABLE"})


class DoorLedger:
    """Call `note` for each error, it picks those that count; call `answered` for each answer from the cache."""

    def __init__(self, buffer: LedgerBuffer) -> None:
        self._buffer = buffer

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._flush_forever)

    def stop(self) -> None:
        self._greenlet.kill()
        self._buffer.flush()

    def note(self, submission: Submission, error: BunchError, seconds: float) -> None:
        if error.code not in AT_THE_DOOR:
            return
        now_ms, latency_ms = int(time.time() * 1000), round(seconds * 1000)
        # Under a new id: the caller never got the task's.
        self._note(new_id(), now_ms - latency_ms, submission, REFUSED, now_ms, error.code)

    def answered(self, out: Outgoing) -> None:
        now_ms = int(time.time() * 1000)
        self._note(out.task_id, now_ms, out.submission, COMPLETED, now_ms, None)

    def _note(
        self, task_id: str, created_ms: int, submission: Submission, status: str, now_ms: int, code: str | None
    ) -> None:
        owner, tier = submission.caller.owner, submission.tier.value
        ended = (status, now_ms, 0, code, submission.client_id or None)
        self._buffer.note(RowGroup([task_id], [created_ms], owner, tier, submission.model, *ended))

    def _flush_forever(self) -> None:
        while True:
            gevent.sleep(FLUSH_EVERY_S)
            self._buffer.flush()
