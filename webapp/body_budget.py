"""Limits what large bodies cost the event loop, and counts refused ones against their key's rate.

    head ──admit──▶ body ──turn──▶ read, checked, encoded, signed ──▶ the queue, where each request counts
             │                          └ refused: counted here, against the same rate
             └ its key is over its rate: 429, and the body is not even received

A mebibyte of JSON takes milliseconds to prepare, and a hundred of them if somebody has shaped it for that. So large
bodies are prepared one at a time, with a pause after each that is as long as the work took: half of the loop's time
stays for other requests. Redis and the workers work as hard on them. So of the large requests of a key whose callers
wait, only some megabytes are in the queue at a time, and the others wait here, where waiting costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, process_time
from typing import Self

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from config.schema import MAX_BATCH_BYTES
from tasks.errors import CallerGone, RateLimited, ServiceOverloaded
from tasks.protocol.caller import Caller

LARGE_BYTES = 64 * 1024
"""The size from which on a body waits for its turn."""
COUNTED_BYTES = 16 * 1024
"""The size from which on a refused body counts: a body that fits beside a head costs less than the count."""
LEAST_BYTES = 4 * 1024
"""The least that a request of a bulk call counts for in the queue: a thousand short ones take as long as large ones."""
# Four batches of the default size in bytes: enough for the executors always to have a next one.
MAX_IN_FLIGHT_BYTES = 4 * MAX_BATCH_BYTES
# Each one holds a whole body in memory.
MAX_WAITING = 32
MAX_WAITING_OF_A_KEY = MAX_WAITING // 2
MAX_WAIT_S = 5.0
_MAX_KEYS = 4096


@dataclass(slots=True)
class _Key:
    """One key: its bodies that wait here, and the bytes of its requests that are not answered."""

    waiting: int = 0
    in_flight: int = 0
    has_room: Event = field(default_factory=Event)

    def add(self, in_flight: int) -> None:
        self.in_flight += in_flight
        if self.in_flight < MAX_IN_FLIGHT_BYTES:
            self.has_room.set()
        else:
            self.has_room.clear()


class Turn:
    """The turn of one large body; others wait until it has ended. Both methods may be called twice."""

    def __init__(self, budget: BodyBudget, key_id: str) -> None:
        self._budget = budget
        self._key_id = key_id
        # CPU time of this process: other work of the machine is no reason to pause.
        self._began = process_time()
        self._ended = False
        self._in_flight = 0

    def end(self, in_flight: int = 0) -> None:
        """The next may begin. `in_flight`: the bytes that are in the queue until `leave`."""
        if not self._ended:
            self._ended = True
            self._in_flight = in_flight
            self._budget.rest(process_time() - self._began, self._key_id, in_flight)

    def leave(self) -> None:
        """The request is answered."""
        self.end()
        in_flight, self._in_flight = self._in_flight, 0
        if in_flight:
            self._budget.landed(self._key_id, in_flight)

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
        # Only keys that have something here.
        self._keys: dict[str, _Key] = {}
        # Monotonic time until which a key may send no large body.
        self._closed: dict[str, float] = {}

    def turn(self, key_id: str, hung_up: Callable[[], bool] | None = None) -> Turn:
        """Wait for the turn of a large body of a key.

        Raises:
            ServiceOverloaded: too many wait, or it has waited for `MAX_WAIT_S`.
            CallerGone: `hung_up` says that nobody waits for it any more.
        """
        until = monotonic() + MAX_WAIT_S
        known = self._keys.get(key_id)
        if self._waiting >= MAX_WAITING or (known is not None and known.waiting >= MAX_WAITING_OF_A_KEY):
            raise _too_many()
        key = known or self._new_key(key_id)
        self._waiting += 1
        key.waiting += 1
        try:
            self._wait(key, until)
            try:
                gevent.sleep(max(0.0, self._rested_at - monotonic()))
                if hung_up is not None and hung_up():
                    raise CallerGone("the caller has disconnected")
            except BaseException:
                self._turn.release()
                raise
        finally:
            self._waiting -= 1
            key.waiting -= 1
            self._forget_idle(key_id, key)
        return Turn(self, key_id)

    def _wait(self, key: _Key, until: float) -> None:
        """Return with the turn taken, and room for the key's next request. Raises ServiceOverloaded."""
        while key.has_room.wait(timeout=max(0.0, until - monotonic())):
            if not self._turn.acquire(timeout=max(0.0, until - monotonic())):
                break
            if key.has_room.is_set():
                return
            # Others of the same key came first.
            self._turn.release()
        raise _too_many()

    def _new_key(self, key_id: str) -> _Key:
        key = self._keys[key_id] = _Key()
        key.has_room.set()
        return key

    def _forget_idle(self, key_id: str, key: _Key) -> None:
        if not key.waiting and not key.in_flight:
            self._keys.pop(key_id, None)

    def rest(self, seconds: float, key_id: str, in_flight: int) -> None:
        """Called by a turn that ends."""
        self._rested_at = monotonic() + seconds
        if in_flight:
            (self._keys.get(key_id) or self._new_key(key_id)).add(in_flight)
        self._turn.release()

    def landed(self, key_id: str, in_flight: int) -> None:
        """Called by a turn whose request is answered."""
        key = self._keys[key_id]
        key.add(-in_flight)
        self._forget_idle(key_id, key)

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
