"""The lanes of the simulated queues, and what is taken from them.

A lane is a list of arrival times, including future ones; `seen` of them have arrived and `head` have been taken. So a
batch is a few numbers (lane, from, to), whatever its size, and nothing is done per request. Requests that come back
after a fault are kept before the head, one by one, with their attempts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from batching.claim.loop_state import Waiting

# There are few arrivals between two claims, so a short search comes first.
_NEAR = 64


@dataclass(slots=True)
class Lane:
    """One tier. The times are those at which requests reach the queue.

    `called` are the times at which their callers sent them, where the delay is not the same for all. `limit_s` is the
    longest wait in the queue, `deadline_s` that of the caller; `deadlines` are absolute times, where callers differ.
    """

    times: list[float]
    limit_s: float = math.inf
    deadline_s: float = math.inf
    deadlines: list[float] | None = None
    called: list[float] | None = None
    seen: int = 0
    head: int = 0
    front: deque[int] = field(default_factory=deque)

    def arrive(self, now: float) -> None:
        """Count the requests that have arrived."""
        seen, times = self.seen, self.times
        if seen == len(times) or times[seen] > now:
            return
        near = min(len(times), seen + _NEAR)
        found = bisect_right(times, now, seen, near)
        self.seen = found if found < near else bisect_right(times, now, near)

    def oldest(self) -> float:
        """The arrival time of the oldest waiting request; infinite when none waits."""
        if self.front:
            return self.times[self.front[0]]
        return self.times[self.head] if self.head < self.seen else math.inf

    def deadline(self, index: int) -> float:
        return self.times[index] + self.deadline_s if self.deadlines is None else self.deadlines[index]

    def is_late(self, index: int, now: float, margin_s: float = 0.0) -> bool:
        return self.times[index] + self.limit_s <= now or self.deadline(index) <= now + margin_s


class Seen(NamedTuple):
    """An executor's knowledge of a queue: the part that its next claim can take from, and the depth of the whole."""

    claimable: Waiting
    depth: int


@dataclass(slots=True)
class Batch:
    """The requests of one claim: runs of a lane (rank, from, to), and single requests that had come back.

    `settled` are requests that came out with it and need no model: expired, or given up. `visits` is the number of
    shards that were asked, `parts` that of those that had something for it.
    """

    size: int = 0
    visits: int = 1
    parts: int = 1
    # The arrival times of its first and its middle request.
    first_at: float = 0.0
    middle_at: float = 0.0
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    singles: list[tuple[int, int]] = field(default_factory=list)
    settled: list[tuple[int, int]] = field(default_factory=list)

    def requests(self) -> list[tuple[int, int]]:
        """Each request, as (rank, index)."""
        return [(rank, index) for rank, first, end in self.runs for index in range(first, end)] + self.singles


@dataclass(slots=True)
class Ledger:
    """The outcomes of the requests, per rank, and their numbers.

    Runs of answered requests: from, to, the time before the first answer, and the time from one answer to the next.
    """

    answered: list[list[tuple[int, int, float, float]]] = field(default_factory=lambda: [[], [], []])
    expired: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
