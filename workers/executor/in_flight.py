"""The batches that a child holds: answered in the order in which they were sent, and timed one after another."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass

from batching.request import Done
from workers.executor.ipc import BrokenFrames
from workers.executor.time_limit import TimeLimit


@dataclass(slots=True, eq=False)
class _Batch:
    """`since` is when it came to the front: only the front batch's time is limited. `shares`: others may run beside
    it.
    """

    batch_id: str
    size: int
    since: float
    shares: bool = False


class InFlight:
    """The batches in the child. One thread adds and takes back, one at a time does the rest. Times are seconds on any
    one clock.
    """

    def __init__(self, limit: TimeLimit) -> None:
        self.limit = limit
        self._batches: deque[_Batch] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def give(self, batch_id: str, size: int, now: float, *, shares: bool = False) -> None:
        self._batches.append(_Batch(batch_id, size, now, shares))

    def take_back(self, batch_id: str) -> None:
        """Remove the last batch, which the child never got as a whole."""
        self._batches.remove(next(each for each in self._batches if each.batch_id == batch_id))

    def touch(self, now: float) -> None:
        """The front batch is alive, and its time restarts."""
        self._batches[0].since = now

    def done(self, done: Done, now: float) -> None:
        """The front batch is answered.

        Raises:
            BrokenFrames: this is not its answer, or it does not have one outcome per input.
        """
        front = self._batches[0]
        if done.batch_id != front.batch_id or len(done.outcomes) != front.size:
            raise BrokenFrames(f"an answer to {done.batch_id} where {front.batch_id} was due")
        if done.passes == 1:
            self.limit = self.limit.computed(done.compute_s)
        self._batches.popleft()
        if self._batches:
            self._batches[0].since = now

    def left(self, now: float) -> float:
        """The time that the front batch has left; without batches, the limit of any batch."""
        with contextlib.suppress(IndexError):
            return self._batches[0].since + self.limit.seconds - now
        return self.limit.seconds

    def overdue(self) -> str:
        """The error text of the front batch, whose time is over."""
        text = f"the batch ran longer than {self.limit}"
        self.limit = self.limit.exceeded()
        return text

    @property
    def overlap(self) -> bool:
        """Return whether the batch behind the front one may have begun as well."""
        return len(self._batches) > 1 and self._batches[0].shares and self._batches[1].shares

    def drop_all(self) -> list[str]:
        """The ids of the remaining batches, the front one first."""
        left = [each.batch_id for each in self._batches]
        self._batches.clear()
        return left
