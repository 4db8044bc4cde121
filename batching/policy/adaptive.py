"""Go when the executor is free, but let the callers who have just been answered come back first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Wait
from batching.policy.idle import ahead


@dataclass(frozen=True, slots=True)
class Adaptive:
    """`WhenIdle`, with a bounded moment of gathering after each batch.

    Callers who wait for an answer before they ask again come back all at once, just after a batch. `WhenIdle` sends the
    first of them off alone, and all the others wait for a batch of one: with 64 such callers and a batch of 50 ms that
    halves the throughput. So, while fewer wait than recent batches held, the executor waits for more, at most a share
    `gather` of what a batch takes, and never over `max_wait_s`.

    The cost is bounded by the same share. A lone caller (recent batches of one) and a model that is faster than its
    callers pay nothing.
    """

    max_batch_size: int
    max_wait_s: float
    gather: float = 0.2
    least_s: float = 0.002
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand > 0:
            return ahead(queue, now, self.max_batch_size, self.lead_s)
        due = queue.free_at + min(max(self.least_s, self.gather * queue.batch_s), self.max_wait_s)
        if queue.recent <= 1:
            due = -math.inf
        if queue.depth is None:
            return Look() if now < due else Dispatch(self.max_batch_size, Reason.IDLE)
        if queue.depth == 0:
            return Wait()
        if queue.depth >= self.max_batch_size:
            return Dispatch(self.max_batch_size, Reason.FULL)
        if now >= due:
            return Dispatch(self.max_batch_size, Reason.IDLE)
        return Wait(until=due) if queue.depth < queue.recent else Dispatch(self.max_batch_size, Reason.IDLE)
