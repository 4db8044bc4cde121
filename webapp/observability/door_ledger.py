"""The frontend's side of the ledger: requests that reach no worker, refused or answered from the cache."""

from __future__ import annotations

import time

import gevent

from config.tiers import Tier
from tasks.accounts.ledger import COMPLETED, REFUSED, LedgerBuffer, RowGroup
from tasks.client.client import new_id
from tasks.client.submission import Submission
from tasks.errors import BunchError
from tasks.protocol.messages import Outgoing

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
        # Under an id of its own, since the task's was never told to anybody.
        row = RowGroup(
            [new_id()],
            [now_ms - latency_ms],
            submission.caller.owner,
            submission.tier.value,
            submission.model,
            *(REFUSED, now_ms, 0, error.code, submission.client_id or None),
        )
        self._buffer.note(row)

    def answered(self, out: Outgoing, tier: Tier) -> None:
        now_ms = int(time.time() * 1000)
        ended = (out.owner, tier.value, out.model, COMPLETED, now_ms, 0, None, out.client_id or None)
        self._buffer.note(RowGroup([out.task_id], [now_ms], *ended))

    def _flush_forever(self) -> None:
        while True:
            gevent.sleep(FLUSH_EVERY_S)
            self._buffer.flush()
