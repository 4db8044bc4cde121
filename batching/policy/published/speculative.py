"""Dispatch early when later arrivals will not fill the batch in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from batching.policy.base import Decision, Dispatch, QueueView, Reason, Size, Wait, Within
from batching.policy.window import in_window

# The number of expected gaps without an arrival after which the forecast is made again.
_GAPS = 2.0
_LEAST_S = 0.002


@dataclass(frozen=True, slots=True)
class Speculative:
    """`FixedWindow`, as long as the arrival rate makes it likely that the window ends with a full batch.

    `sure` is the number of standard deviations of a Poisson count by which the forecast may fall short: 0 waits when
    filling is as likely as not, 1 also when it would take some luck.
    """

    name: ClassVar[str] = "speculative"

    max_batch_size: Size
    max_wait_s: float = 0.05
    sure: Annotated[float, Within(0, 10)] = 0.0
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        decision = in_window(queue, now, size=self.max_batch_size, wait_s=self.max_wait_s, lead_s=self.lead_s)
        if not isinstance(decision, Wait) or not queue.depth or queue.in_hand:
            return decision
        rate = queue.learnt.rate
        coming = rate * (decision.until - now)
        if coming + self.sure * coming**0.5 < self.max_batch_size - queue.depth:
            return Dispatch(self.max_batch_size, Reason.IDLE)
        # Without arrivals the rate falls, so ask again before the window ends.
        return Wait(until=min(decision.until, now + max(_LEAST_S, _GAPS / rate)))
