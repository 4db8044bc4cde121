"""A circuit breaker: a model that keeps failing gets no more requests, until a small batch shows that it works again.

States: closed, open, half-open (Nygard, "Release It!", 2007). While it is open, requests wait in their queue, where
another worker may take them, instead of using up their attempts here.
"""

from __future__ import annotations

from enum import Enum


class BreakerState(str, Enum):
    CLOSED = "closed"
    HALF_OPEN = "half-open"
    OPEN = "open"


class Breaker:
    """Opens after `failures` batches in a row without one good outcome.

    Time is an argument, in seconds on any one clock. For one thread; several share a
    `batching.claim.shared_breaker.SharedBreaker`.
    """

    def __init__(
        self,
        failures: int = 5,
        open_s: float = 1.0,
        max_open_s: float = 30.0,
        probe_size: int = 1,
        full_size: int = 1 << 30,
    ) -> None:
        self._failures = failures
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._probe_size = probe_size
        self._full_size = full_size
        self._in_a_row = 0
        self._open_s = open_s
        self._until = 0.0
        self._state = BreakerState.CLOSED
        self._probing = False

    @property
    def state(self) -> BreakerState:
        return self._state

    def permits(self, now: float) -> int:
        """The size of a batch that may be claimed: the maximum, a probe while half-open (one at a time), or 0.

        Asking does not take the probe: a loop with an empty queue may wait for the request that will be the probe.
        Before the claim, `take` returns the same, and takes the probe.
        """
        if self._state is BreakerState.CLOSED:
            return self._full_size
        if self._state is BreakerState.OPEN and now >= self._until:
            self._state = BreakerState.HALF_OPEN
            self._probing = False
        if self._state is BreakerState.HALF_OPEN and (not self._probing or now >= self._until):
            return self._probe_size
        return 0

    def take(self, now: float) -> int:
        """`permits`, for a claim that follows at once; the next probe waits for the outcome of this one."""
        permitted = self.permits(now)
        if permitted and self._state is BreakerState.HALF_OPEN:
            # A probe whose requests were all cancelled reports nothing; so the next is allowed after the same pause.
            self._probing = True
            self._until = now + self._open_s
        return permitted

    def found_nothing(self) -> None:
        """The claim came back empty, so its probe is still to be taken."""
        self._probing = False

    def record(self, now: float, *, ok: bool) -> None:
        """Record that a batch came back with at least one good outcome (`ok`), or with none."""
        if ok:
            self._state = BreakerState.CLOSED
            self._in_a_row = 0
            self._open_s = self._first_open_s
            return
        self._in_a_row += 1
        if self._state is BreakerState.HALF_OPEN:
            self._open_s = min(self._max_open_s, self._open_s * 2)
        elif self._in_a_row < self._failures:
            return
        self._state = BreakerState.OPEN
        self._until = now + self._open_s

    def reset(self) -> None:
        """Close the breaker, when an operator reports that the model works."""
        self._state = BreakerState.CLOSED
        self._in_a_row = 0
        self._open_s = self._first_open_s
