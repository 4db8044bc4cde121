"""Three steps of size and window, chosen by queue depth and utilisation: a table that people can read and discuss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, Depth, Look, QueueView, Share, Size
from batching.policy.idle import ahead
from batching.policy.window import in_window


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Quiet: 16 or 30 ms. Busy: 64 or 100 ms. Otherwise: 32 or 50 ms. Never over `max_batch_size` and `max_wait_s`.

    Quiet is utilisation below `quiet_use` and depth below `quiet_depth`; busy is either of them above its upper
    threshold.
    """

    name: ClassVar[str] = "thresholds"

    max_batch_size: Size
    max_wait_s: float = 0.1
    quiet_use: Share = 0.5
    quiet_depth: Depth = 10
    quiet_size: Size = 16
    quiet_wait_s: float = 0.03
    size: Size = 32
    wait_s: float = 0.05
    busy_use: Share = 0.85
    busy_depth: Depth = 100
    busy_size: Size = 64
    busy_wait_s: float = 0.1
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.depth is None:
            return ahead(queue, now, self.max_batch_size, self.lead_s) if queue.in_hand else Look()
        size, wait_s = self._step(queue.depth, queue.learnt.utilisation)
        return in_window(
            queue,
            now,
            size=min(size, self.max_batch_size),
            wait_s=min(wait_s, self.max_wait_s),
            lead_s=self.lead_s,
        )

    def _step(self, depth: int, use: float) -> tuple[int, float]:
        if use < self.quiet_use and depth < self.quiet_depth:
            return self.quiet_size, self.quiet_wait_s
        if use > self.busy_use or depth > self.busy_depth:
            return self.busy_size, self.busy_wait_s
        return self.size, self.wait_s
