"""Limits what large bodies cost the event loop, and counts refused ones against their key's rate.

    head ──admit──▶ body ──turn──▶ read, checked ──▶ the queue, where each request counts
             │                          └ refused: counted here, against the same rate
             └ its key is over its rate: 429, and the body is not even received

A mebibyte of JSON takes milliseconds to parse, and tens of them if somebody has shaped it for that. So large bodies are
parsed one at a time, with a pause after each that is as long as the parsing took: half of the loop's time stays for
other requests.
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
"""The size from which on a body waits for its turn."""
COUNTED_BYTES = 16 * 1024
"""The size from which on a refused body counts: a body that fits beside a head costs less than the count."""
# Each one holds a whole body in memory.
MAX_WAITING = 32
_MAX_KEYS = 4096


class BodyBudget:
    """The budget of one process. `charge` counts one request against its caller's rate and returns the seconds until
    the caller may send again, 0 if it was within its rate.
    """

    def __init__(self, charge: Callable[[Caller], float]) -> None:
        self._charge = charge
        self._turn = Semaphore(1)
        self._rested_at = 0.0
        self._waiting = 0
        # Monotonic time until which a key may send no large body.
        self._closed: dict[str, float] = {}

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for the turn of a large body. Raises ServiceOverloaded if too many wait."""
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
        # CPU time of this process: other work of the machine is no reason to pause.
        began = process_time()
        try:
            yield
        finally:
            self._rested_at = monotonic() + (process_time() - began)
            self._turn.release()

    def admit(self, caller: Caller) -> None:
        """Check a caller before its body is received. Raises RateLimited while its key had too many refused."""
        until = self._closed.get(caller.key_id)
        if until is None:
            return
        left_s = until - monotonic()
        if left_s > 0:
            raise _too_often(left_s)
        del self._closed[caller.key_id]

    def refused(self, caller: Caller) -> None:
        """Count a large body that was refused for its content. Raises RateLimited if that exceeds its key's rate."""
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
