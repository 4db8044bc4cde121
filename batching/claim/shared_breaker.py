"""One breaker for all executors of a model in a worker: the rule of `batching.policy.faults.breaker` under a lock."""

from __future__ import annotations

import threading

from batching.policy import Breaker, BreakerState


class SharedBreaker:
    """`Breaker`, for the threads of several claim loops."""

    def __init__(self, breaker: Breaker | None = None) -> None:
        self._breaker = breaker or Breaker()
        self._lock = threading.Lock()

    @property
    def state(self) -> BreakerState:
        return self._breaker.state

    def permits(self, now: float) -> int:
        with self._lock:
            return self._breaker.permits(now)

    def take(self, now: float) -> int:
        with self._lock:
            return self._breaker.take(now)

    def found_nothing(self) -> None:
        with self._lock:
            self._breaker.found_nothing()

    def record(self, now: float, *, ok: bool) -> None:
        with self._lock:
            self._breaker.record(now, ok=ok)

    def reset(self) -> None:
        with self._lock:
            self._breaker.reset()
