"""Dispatch when the executor is free; gather while it is busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Size, Wait


@dataclass(frozen=True, slots=True)
class WhenIdle:
    """Continuous batching at the level of batches: the executor is never idle while requests wait.

    While it computes, requests gather, so batches grow with the load, and a lone request does not wait. A full batch is
    claimed `lead_s` before the executor comes free, which hides the cost of claiming. A batch that is not full is never
    claimed ahead, since it could still grow.
    """

    name: ClassVar[str] = "idle"

    max_batch_size: Size
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand == 0:
            if queue.depth == 0:
                return Wait()
            full = queue.depth is not None and queue.depth >= self.max_batch_size
            return Dispatch(self.max_batch_size, Reason.FULL if full else Reason.IDLE)
        return ahead(queue, now, self.max_batch_size, self.lead_s)


def ahead(queue: QueueView, now: float, max_batch_size: int, lead_s: float) -> Decision:
    """The decision while the executor computes: a full batch shortly before it is free, or nothing. What it takes to
    read large payloads comes before that, so that the executor does not wait for it.

    It does not pay for batches about as short as the lead, unless reading takes as long.
    """
    if queue.in_hand > 1 or (queue.batch_s < 2 * lead_s and queue.read_s < lead_s):
        return Wait()
    look_at = queue.free_at - lead_s - queue.read_s
    if now < look_at:
        return Wait(until=look_at)
    if queue.depth is None:
        return Look()
    return Dispatch(max_batch_size, Reason.FULL) if queue.depth >= max_batch_size else Wait()
