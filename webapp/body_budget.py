"""Limits what large bodies cost the event loop, and counts refused ones against their key's rate.

    head ──admit──▶ body ──turn──▶ read, checked, encoded, signed ──▶ the queue, where each request counts
             │                          └ refused: counted here, against the same rate
             └ its key is over its rate: 429, and the body is not even received

A mebibyte of JSON takes milliseconds to prepare, and a hundred of them if somebody has shaped it for that. So large
bodies are prepared one at a time, with a pause after each that is as long as the work took: half of the loop's time
stays for other requests. Redis and the workers work as hard on them. So of the large requests whose callers wait, only
some megabytes are in the queue at a time, and the others wait here, where waiting costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, process_time
from typing import Self

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from config.schema import MAX_BATCH_BYTES
from tasks.errors import RateLimited, ServiceOverloaded
from tasks.protocol.caller import Caller

LARGE_BYTES = 64 * 1024
"""The size from which on a body waits for its turn."""
COUNTED_BYTES = 16 * 1024
"""The size from which on a refused body counts: a body that fits beside a head costs less than the count."""
# Four batches of the default size in bytes: enough for the executors always to have a next one.
MAX_IN_FLIGHT_BYTES = 4 * MAX_BATCH_BYTES
# Each one holds a whole body in memory.
MAX_WAITING = 32
MAX_WAIT_S = 5.0
_MAX_KEYS = 4096


class Turn:
    """The turn of one large body; others wait until it has ended. Both methods may be called twice."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        # CPU time of this process: other work of the machine is no reason to pause.
        self._began = process_time()
        self._ended = False
        self._in_flight = 0

    def end(self, in_flight: int = 0) -> None:
        """The next may begin. `in_flight`: the bytes that are in the queue until `leave`."""
        if not self._ended:
            self._ended = True
            self._in_flight = in_flight
            self._budget.rest(process_time() - self._began, in_flight)

    def leave(self) -> None:
        """The request is answered."""
        self.end()
        in_flight, self._in_flight = self._in_flight, 0
        self._budget.landed(in_flight)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class BodyBudget:
    """The budget of one process. `charge` counts one request against its caller's rate and returns the seconds until
    the caller may send again, 0 if it was within its rate.
    """

    def __init__(self, charge: Callable[[Caller], float]) -> None:
        self._charge = charge
        self._turn = Semaphore(1)
        self._rested_at = 0.0
        self._waiting = 0
        self._in_flight = 0
        self._has_room = Event()
        self._has_room.set()
        # Monotonic time until which a key may send no large body.
        self._closed: dict[str, float] = {}

    def turn(self) -> Turn:
        """Wait for the turn of a large body. Raises ServiceOverloaded if too many wait, or it waits for too long."""
        if self._waiting >= MAX_WAITING:
            raise _too_many()
        self._waiting += 1
        try:
            if not self._turn.acquire(timeout=MAX_WAIT_S):
                raise _too_many()
            try:
                # The holder of the turn is the only one who waits for this.
                if not self._has_room.wait(timeout=MAX_WAIT_S):
                    raise _too_many()
                gevent.sleep(max(0.0, self._rested_at - monotonic()))
            except BaseException:
                self._turn.release()
                raise
        finally:
            self._waiting -= 1
        return Turn(self)

    def rest(self, seconds: float, in_flight: int) -> None:
        """Called by a turn that ends."""
        self._rested_at = monotonic() + seconds
        self._in_flight += in_flight
        if self._in_flight >= MAX_IN_FLIGHT_BYTES:
            self._has_room.clear()
        self._turn.release()

    def landed(self, in_flight: int) -> None:
        """Called by a turn whose request is answered."""
        self._in_flight -= in_flight
        if self._in_flight < MAX_IN_FLIGHT_BYTES:
            self._has_room.set()

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


def _too_many() -> ServiceOverloaded:
    return ServiceOverloaded("too many large bodies arrive at once; try again shortly", 1.0)


def _too_often(wait_s: float) -> RateLimited:
    return RateLimited("too many large bodies of this API key were refused; slow down", wait_s)
