"""Calls in threads, so many at once of each lane: where one lane's calls hang, those of the others go on.

    submit ──▶ the lane's line ──▶ at most `of_a_lane` of it are ready ──▶ a thread, for one call; then the lane is last

The threads end when there is nothing to do, and a process does not wait for them at its end.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """A lane without a call takes no room.

    Args:
        of_a_lane: so many calls of a lane are made at once.
        of_all: so many of all lanes.
    """

    def __init__(self, of_a_lane: int, of_all: int) -> None:
        self._of_a_lane = of_a_lane
        self._of_all = of_all
        self._lock = threading.Lock()
        self._waiting: defaultdict[str, deque[tuple[Future[T], Callable[[], T]]]] = defaultdict(deque)
        # Of each lane, how many threads have it or shall have it; and the lanes of the latter.
        self._places: Counter[str] = Counter()
        self._ready: deque[str] = deque()
        self._threads = 0

    def submit(self, lane: str, call: Callable[[], T]) -> Future[T]:
        """Make a call, after those of its lane that have come before."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting[lane].append((future, call))
            if self._places[lane] < self._of_a_lane:
                self._places[lane] += 1
                self._ready.append(lane)
            begins = self._threads < min(self._of_all, self._threads + len(self._ready))
            self._threads += begins
        if begins:
            threading.Thread(target=self._work, name=f"lane {lane}", daemon=True).start()
        return future

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            lane, future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    value = call()
                except BaseException as error:  # noqa: BLE001 - it is for whoever has the future
                    future.set_exception(error)
                else:
                    future.set_result(value)
            with self._lock:
                # Last, so that no lane keeps the threads from the others.
                self._ready.append(lane)

    def _next(self) -> tuple[str, Future[T], Callable[[], T]] | None:
        """The next call; None: this thread is not needed any more."""
        with self._lock:
            while self._ready:
                lane = self._ready.popleft()
                if self._waiting[lane]:
                    return lane, *self._waiting[lane].popleft()
                self._places[lane] -= 1
                if not self._places[lane]:
                    del self._places[lane], self._waiting[lane]
            self._threads -= 1
            return None
