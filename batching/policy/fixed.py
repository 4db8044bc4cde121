"""Wait or full: the rule of the published designs (64 requests or 50 ms)."""

from __future__ import annotations

from dataclasses import dataclass

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Wait
from batching.policy.idle import ahead


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """Go when the batch is full, or when its oldest request has waited `max_wait_s`.

    Ahead of the executor coming free (`lead_s`) only a full batch goes, as in `WhenIdle`.
    """

    max_batch_size: int
    max_wait_s: float
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand > 0:
            return ahead(queue, now, self.max_batch_size, self.lead_s)
        if queue.depth is None:
            return Look()
        if queue.depth >= self.max_batch_size:
            return Dispatch(self.max_batch_size, Reason.FULL)
        if queue.depth == 0:
            return Wait()
        # From the oldest request, not from the last flush: a timer's phase would let a request wait anywhere
        # between nothing and the whole window.
        due = queue.oldest_at + self.max_wait_s
        return Dispatch(self.max_batch_size, Reason.DELAY) if now >= due else Wait(until=due)
