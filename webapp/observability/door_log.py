"""The frontend's side of the batch log: requests refused at admission, or answered from the cache.

They are noted in memory and written once a second, as workers write their batches (`tasks.observability.batch_log`).
"""

from __future__ import annotations

import time
from collections import deque

from redis.exceptions import RedisError

from tasks.client.submission import Submission
from tasks.errors import BunchError
from tasks.observability.batch_log import BatchLog, BatchRecord, Member
from tasks.observability.error_summary import error_summary
from tasks.protocol.outgoing import Outgoing
from webapp.observability.door_ledger import AT_THE_DOOR
from webapp.request import HttpRequest

# The limit while Redis is away; beyond it the oldest are dropped.
_MAX_NOTED = 20_000
ANSWERED = "answered from the cache"


class DoorRecord:
    """The notes of one process. Call `note` for each error (it picks those that count), `answered` for each cache
    hit.
    """

    def __init__(self, batch_log: BatchLog) -> None:
        self._batch_log = batch_log
        self._noted: deque[tuple[str, str, Member]] = deque(maxlen=_MAX_NOTED)

    def note(self, call: HttpRequest, task_id: str, submission: Submission, error: BunchError) -> None:
        if error.code not in AT_THE_DOOR:
            return
        own = call.request_id
        why = f"refused at the door ({error.reason})" if error.reason else "refused at the door"
        request_id = own if own != task_id else ""
        member = Member(
            *(task_id, submission.tier.rank, 0),
            code=error.code,
            request_id=request_id,
            error=error_summary(error.message),
        )
        self._noted.append((submission.model, why, member))

    def answered(self, out: Outgoing) -> None:
        asked = out.submission
        member = Member(out.task_id, asked.tier.rank, 0, code="OK", request_id=asked.request_id)
        self._noted.append((asked.model, ANSWERED, member))

    def flush(self) -> None:
        """Write the notes. Raises RedisError; then they are kept for the next flush."""
        if not self._noted:
            return
        noted = list(self._noted)
        self._noted.clear()
        now_ms = int(time.time() * 1000)
        rows: dict[tuple[str, str], list[Member]] = {}
        for model, why, member in noted:
            rows.setdefault((model, why), []).append(member)
        try:
            self._batch_log.write(
                BatchRecord(model=model, why=why, claimed_ms=now_ms, members=members)
                for (model, why), members in rows.items()
            )
        except RedisError:
            self._noted.extendleft(reversed(noted))
            raise
