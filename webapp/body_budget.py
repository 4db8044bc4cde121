"""Large bodies: what they cost the event loop, and whose account that goes on.

    head ──admit──▶ body ──turn──▶ read, checked ──▶ the queue, where each request counts
             │                          └ refused: counted here, against the same rate
             └ its key is over its rate: 429, and the body is not even received

A mebibyte of JSON takes milliseconds to read, and tens of them where somebody has chosen its shape to that end. So
large bodies are read one at a time, with a rest after each that is as long as it took: half of the loop stays
everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, process_time

import gevent
from gevent.lock import Semaphore

from tasks.errors import RateLimited, ServiceOverloaded
from tasks.protocol.caller import Caller

LARGE_BYTES = 64 * 1024
"""From here on a body waits for its turn."""
COUNTED_BYTES = 16 * 1024
"""From here on a refused one counts: what fits beside a head costs less than to count it."""
# Each holds a whole body in memory.
MAX_WAITING = 32
_MAX_KEYS = 4096


class BodyBudget:
    """Of one process. `charge` counts one request against its caller's rate and says in how many seconds the caller may
    ask again, 0 where it was within it.
    """

    def __init__(self, charge: Callable[[Caller], float]) -> None:
        self._charge = charge
        self._turn = Semaphore(1)
        self._rested_at = 0.0
        self._waiting = 0
        # Until when (monotonic) a key may send no large body.
        self._closed: dict[str, float] = {}

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for it, if the body is large. Raises ServiceOverloaded where too many wait."""
        if size < LARGE_BYTES:
            yield
            return
        if self._waiting >= MAX_WAITING:
            raise ServiceOverloaded("too many large bodies arrive at once; try again shortly", 1.0)
        self._waiting += 1
        try:
            self._turn.acquire()
            gevent.sleep(max(0.0, self._rested_at - monotonic()))
        finally:
            self._waiting -= 1
        # Of the processor: what else the machine does meanwhile is no reason to rest.
        began = process_time()
        try:
            yield
        finally:
            self._rested_at = monotonic() + (process_time() - began)
            self._turn.release()

    def admit(self, caller: Caller) -> None:
        """Before the body is received. Raises RateLimited while the caller's key is over its rate for bodies that were
        refused.
        """
        until = self._closed.get(caller.key_id)
        if until is None:
            return
        left_s = until - monotonic()
        if left_s > 0:
            raise _too_often(left_s)
        del self._closed[caller.key_id]

    def refused(self, caller: Caller) -> None:
        """A large body was refused for what is in it. Raises RateLimited when its key may not even ask so often."""
        if not caller.key_id:
            return
        wait_s = self._charge(caller)
        if wait_s > 0:
            if len(self._closed) >= _MAX_KEYS:
                self._closed.clear()
            self._closed[caller.key_id] = monotonic() + wait_s
            raise _too_often(wait_s)


def _too_often(wait_s: float) -> RateLimited:
    return RateLimited("too many large bodies of this API key were refused; slow down", wait_s)
