"""The batches between their claim and their outcomes, as the claim loop of their executor knows them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from batching.ports import BatchInfo
from batching.request import Done, Request


@dataclass(slots=True)
class InHand:
    """Seconds on the loop's clock. `turn_at` is when it came to the front, `took_s` its cost in a row of batches."""

    requests: list[Request]
    info: BatchInfo
    claimed_at: float
    took_s: float = 0.0
    turn_at: float = 0.0

    def timed(self, event: Done, now: float) -> BatchInfo:
        """What is told of the batch once it is computed."""
        return replace(
            self.info,
            compute_s=event.compute_s,
            passes=event.passes,
            wait_s=self.turn_at - self.claimed_at,
            turn_s=now - self.turn_at,
            collapsed=event.collapsed,
        )


class Hands:
    """What one executor has: a batch inside the model, perhaps one behind it. Under the loop's condition `changed`."""

    def __init__(self, changed: threading.Condition, clock: Callable[[], float]) -> None:
        self.batches: dict[str, InHand] = {}
        # Beside those also what has been asked for, and what has come back and is not stored yet.
        self.leased: set[str] = set()
        # An average over about eight batches: enough to aim the next claim, no more is asked of it.
        self.batch_s = 0.0
        self._changed = changed
        self._clock = clock
        self._front_since = 0.0
        self._occupied_since = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def free_at(self) -> float:
        """When the batch in front is expected to be done; with none, when the last one was."""
        return self._front_since + (self.batch_s if self.batches else 0.0)

    def occupy(self) -> None:
        """A row of batches begins, with the claim of its first."""
        self._occupied_since = self._clock()

    def put(self, run: list[Request], info: BatchInfo) -> None:
        with self._changed:
            if not self.batches:
                self._front_since = self._clock()
            self.batches[info.batch_id] = InHand(run, info, self._clock())

    @contextlib.contextmanager
    def settling(self, batch_id: str) -> Iterator[None]:
        """Taken from the executor; leased until its outcomes are stored, or its requests are given back."""
        try:
            yield
        finally:
            self.leased.discard(batch_id)

    def take(self, batch_id: str, *, compute: bool = False) -> InHand | None:
        """The batch leaves the hands of the executor: the feeder may claim at once, before this one is stored."""
        with self._changed:
            batch = self.batches.pop(batch_id, None)
            now = self._clock()
            if batch:
                batch.turn_at = max(self._front_since, batch.claimed_at)
            if batch and compute:
                took = now - self._front_since
                self.batch_s = took if not self.batch_s else self.batch_s + (took - self.batch_s) / 8
                batch.took_s = now - self._occupied_since
            self._occupied_since = now
            self._front_since = now
            self._changed.notify_all()
        return batch
