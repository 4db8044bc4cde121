"""A window that follows the arrival rate: short when it is quiet, long when batches will fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, QueueView, Size
from batching.policy.window import in_window


@dataclass(frozen=True, slots=True)
class EwmaWindow:
    """Wait for a share of `max_wait_s`, equal to the share of a batch that would arrive in it.

    With few arrivals there is nothing to wait for. With more than a batch in `max_wait_s` the whole window is used, and
    the batch is full before it ends. In between the wait grows linearly, so it never jumps.
    """

    name: ClassVar[str] = "ewma"

    max_batch_size: Size
    max_wait_s: float = 0.1
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        filled = min(1.0, queue.learnt.rate * self.max_wait_s / self.max_batch_size)
        return in_window(queue, now, size=self.max_batch_size, wait_s=filled * self.max_wait_s, lead_s=self.lead_s)
