"""A fixed window: dispatch a full batch, or after a time (64 requests or 50 ms in the published designs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, QueueView, Size
from batching.policy.window import in_window


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """Dispatch when the batch is full, or when its oldest request has waited `max_wait_s`."""

    name: ClassVar[str] = "fixed"

    max_batch_size: Size
    max_wait_s: float = 0.05
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        return in_window(
            queue, now, size=self.max_batch_size, wait_s=self.max_wait_s, lead_s=self.lead_s, keep_deadlines=False
        )
