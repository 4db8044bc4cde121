"""Sends the requests of waiting callers again, once another server answers than the one that accepted them.

    router: another `run_id` than before ──▶ outbox: recognise.lua ──▶ there: nothing is done
                                                                     └ lost: the same id, message and place to reply to

Replication is asynchronous, and a server that restarts may have forgotten its last moment. A frontend still has the
message of everybody who waits on it, so such a loss costs those callers time only. What is queued, in a pause, leased,
or finished is left alone: it is neither computed twice for this, nor answered twice, since there is one waiter for an
id. Whoever polls is not here any more: for them there is `BUNCH_DURABILITY`.

They have been admitted once, and are not refused now: no rate, threshold or depth holds for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import structs

from config.keys import Shard
from config.redis import Line, Script
from tasks.client.admission_args import AdmissionArgs
from tasks.protocol.outgoing import Outgoing
from tasks.script_args import RECOGNISE, ClassRow, RecogniseArgs, RecogniseKeys, RuleArgs

_NO_LIMIT = 1_000_000_000
# So large that no state of a key is too far in the future for it, and is taken for a mistake (gcra.lua).
_NO_BURST = 10**15


class Recogniser:
    """Asks the server which requests it still has."""

    def __init__(self, line: Line, keys: Shard) -> None:
        self._line = line
        self._keys = keys
        self._script = Script(RECOGNISE.text)

    def lost(self, outs: Sequence[Outgoing]) -> list[bool]:
        """For each, true if it is lost. Raises RedisError."""
        keys = self._keys
        models = dict.fromkeys(out.submission.model for out in outs)
        queues = [queue for model in models for queue in keys.queues(model)]
        names = RecogniseKeys(
            workers=keys.workers(), leases=keys.leases(""), lease=keys.lease(""), joined=keys.joined()
        )
        args: list[Any] = [*RecogniseArgs(queues=len(queues))]
        for out in outs:
            args += (out.task_id, out.once.question if out.once is not None else "")
        found = self._line.script(self._script, (*names, *queues, *map(keys.delayed, models)), args)
        return [each == ord("0") for each in cast("bytes", found)]


class LenientArgs(AdmissionArgs):
    """Admission that refuses nobody."""

    @property
    def rules(self) -> RuleArgs:
        return self.general._replace(form="off")

    def depth_limit(self, model: str) -> int:
        return _NO_LIMIT

    def of_class(self, out: Outgoing, model: int, quotas: dict[str, int]) -> ClassRow:
        row = super().of_class(out, model, quotas)
        # The key's waiting requests are counted as before; its rate is not.
        return row._replace(interval_us=1, burst=_NO_BURST) if row.quota else row


def shortened(out: Outgoing, late_ms: int) -> Outgoing:
    """The same request, sent `late_ms` later: its times are counted from when it is sent."""
    left_ms = max(1, out.deadline_ms - late_ms)
    return structs.replace(out, deadline_ms=left_ms, queue_limit_ms=min(out.queue_limit_ms, left_ms))
