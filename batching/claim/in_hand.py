"""Batches between their claim and their outcomes, shared by the two threads of a claim loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import msgspec
from msgspec import structs

from batching.claim.loop_state import LoopState
from batching.ports import BatchInfo
from batching.request import Done, Request


class InHand(msgspec.Struct, frozen=True, eq=False):
    """A batch in hand. `claimed_at` is in seconds on the loop's clock."""

    requests: list[Request]
    info: BatchInfo
    claimed_at: float


class Hands:
    """The batches of one loop, under its condition `changed`, which is notified when a batch has left the executor.

    From then on the feeder may claim the next batch, before this one is stored.
    """

    def __init__(self, state: LoopState[InHand], changed: threading.Condition, clock: Callable[[], float]) -> None:
        # Includes, besides the batches in hand, claims under way and batches that are not stored yet.
        self.leased: set[str] = set()
        self._state = state
        self._changed = changed
        self._clock = clock

    def put(self, run: list[Request], info: BatchInfo, left: int) -> None:
        """Add a batch that was claimed and goes to the executor; `left` requests still wait."""
        # The requests of the highest tier come first in a batch, the oldest of them in front.
        waited_s, middle_s = (info.waited_s(each) for each in (run[0], run[len(run) // 2]))
        with self._changed:
            now = self._clock()
            self._state.claimed(InHand(run, info, now), len(run), left, waited_s, middle_s, now)

    def finished(self, event: Done, *, ok: bool) -> tuple[InHand, float] | None:
        """The batch of the event with its times, and the current time; None if it is not in hand."""
        with self._changed:
            batch = self._find(event.batch_id)
            if batch is None:
                return None
            now = self._clock()
            turn_s = self._state.finished(batch, len(batch.requests), now, passes=event.passes, ok=ok)
            followed = bool(self._state.in_hand)
            self._changed.notify_all()
        info = structs.replace(
            batch.info,
            compute_s=event.compute_s,
            passes=event.passes,
            wait_s=max(0.0, now - turn_s - batch.claimed_at),
            turn_s=turn_s,
            collapsed=event.collapsed,
            padding=event.padding,
            followed=followed,
        )
        return InHand(batch.requests, info, batch.claimed_at), now

    def take(self, batch_id: str) -> InHand | None:
        """Remove a batch that will have no outcome."""
        with self._changed:
            batch = self._find(batch_id)
            if batch is not None:
                self._state.lost(batch, self._clock())
                self._changed.notify_all()
        return batch

    def rest(self) -> None:
        """The executor is away: whoever waits for it looks again."""
        with self._changed:
            self._state.rests()
            self._changed.notify_all()

    @contextlib.contextmanager
    def settling(self, batch_id: str) -> Iterator[None]:
        """The batch has left the executor, and is leased until its outcomes are stored or its requests are given
        back.
        """
        try:
            yield
        finally:
            self.leased.discard(batch_id)

    def _find(self, batch_id: str) -> InHand | None:
        return next((each for each in self._state.in_hand if each.info.batch_id == batch_id), None)
