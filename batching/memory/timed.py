"""Values that expire, in a dictionary that forgets them by itself."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


def started_clock() -> Callable[[], int]:
    """Epoch milliseconds that never go back: the time of now, and what has passed since."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (offset_ns + time.monotonic_ns()) // 1_000_000


class Timed(Generic[V]):
    """Values by name. Times are milliseconds of the clock `now_ms`; `size` is what a value counts in `bytes`."""

    def __init__(self, now_ms: Callable[[], int], size: Callable[[V], int] = lambda value: 0) -> None:
        self._now_ms = now_ms
        self._size = size
        self._values: dict[str, tuple[V, int]] = {}
        self._ends: list[tuple[int, str]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def set(self, name: str, value: V, ttl_ms: int) -> None:
        """Keep the value for `ttl_ms`, in place of any other of that name."""
        now = self._now_ms()
        if self._ends and self._ends[0][0] <= now:
            self.expire()
        end = now + ttl_ms
        before = self._values.get(name)
        self._values[name] = (value, end)
        self.bytes += self._size(value) - (self._size(before[0]) if before else 0)
        heapq.heappush(self._ends, (end, name))

    def replace(self, name: str, value: V) -> None:
        """Put another value in the place of one that is there, for as long as that was to stay."""
        old, end = self._values[name]
        self._values[name] = (value, end)
        self.bytes += self._size(value) - self._size(old)

    def get(self, name: str) -> V | None:
        found = self._values.get(name)
        return found[0] if found is not None and found[1] > self._now_ms() else None

    def pop(self, name: str) -> V | None:
        found = self._values.pop(name, None)
        if found is None:
            return None
        self.bytes -= self._size(found[0])
        return found[0] if found[1] > self._now_ms() else None

    def items(self) -> Iterator[tuple[str, V, int]]:
        """Each name with its value and the milliseconds that it has left."""
        now = self._now_ms()
        return ((name, value, end - now) for name, (value, end) in self._values.items() if end > now)

    def left_ms(self, name: str) -> int:
        """The milliseconds for which the value of that name still stays; 0 if there is none."""
        found = self._values.get(name)
        return 0 if found is None else max(0, found[1] - self._now_ms())

    def expire(self) -> None:
        """Forget what has expired, so that `bytes` no longer counts it. Every `set` does so."""
        ends, now = self._ends, self._now_ms()
        while ends and ends[0][0] <= now:
            _, name = heapq.heappop(ends)
            found = self._values.get(name)
            if found is not None and found[1] <= now:
                self.pop(name)
