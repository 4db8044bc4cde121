"""Asks whether requests would be admitted now, before their payloads are written: `submit.lua`, which queues nothing.

    those that ask while a call is under way ──▶ the next call ──▶ None, or the refusal of each

It is no promise. The flush decides, and a payload that was written for nothing is deleted then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gevent.lock import BoundedSemaphore
from redis import Redis

from batching.policy import Shed
from config.redis import Line, Script
from tasks.client.admission_args import AdmissionArgs
from tasks.client.admission_codes import refusals
from tasks.client.flush import FlushWriter, Posted
from tasks.client.pending import Pending
from tasks.errors import BunchError, Refused
from tasks.protocol.outgoing import Outgoing

_MOST_AT_ONCE = 128
# Of a message only its first byte matters here: it is not tracked.
_NO_MESSAGE = b"0"


@dataclass(slots=True)
class _Question:
    item: Posted
    refusal: BunchError | None = None
    asked: bool = False


class Preview:
    """Asks for the greenlets of a process. `on_full`: the server has no memory for more."""

    def __init__(
        self, redis: Redis, rules: AdmissionArgs, writer: FlushWriter, on_full: Callable[[], None] = lambda: None
    ) -> None:
        self._line = Line(redis)
        self._script = Script(rules.script)
        self._rules = rules
        self._writer = writer
        self._on_full = on_full
        self._asking = BoundedSemaphore()
        self._waiting: list[_Question] = []
        self.calls = 0

    def refusal(self, out: Outgoing, pending: Pending) -> BunchError | None:
        """Why this request would be refused now, for a reason that no repeat is exempt from. Raises RedisError."""
        mine = _Question(Posted(out, _NO_MESSAGE, pending, receipt=False))
        self._waiting.append(mine)
        with self._asking:
            # Who waited for the call before may be in a later one.
            while not mine.asked:
                self._ask()
        return mine.refusal

    def close(self) -> None:
        self._line.close()

    def _ask(self) -> None:
        some, self._waiting = self._waiting[:_MOST_AT_ONCE], self._waiting[_MOST_AT_ONCE:]
        self.calls += 1
        # A call that fails answers them: they go on without.
        for each in some:
            each.asked = True
        keys, args = self._writer.call([each.item for each in some], self._rules, -self.calls, asks=True)
        answer = self._line.script(self._script, keys, args)
        for each, refusal in zip(some, refusals(answer, [each.item.out for each in some]), strict=True):
            if isinstance(refusal, Refused):
                each.refusal = refusal
                if refusal.reason == Shed.MEMORY.value:
                    self._on_full()
