"""Size and time of a batch from the deadlines of its requests and the learned time of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Size, Wait, Within
from batching.policy.deadlines import SURE, plan
from batching.policy.idle import ahead


@dataclass(frozen=True, slots=True)
class SloAware:
    """Wait for a batch of an efficient size as long as all deadlines allow it, and at most `max_wait_s`.

    The efficient size is the smallest with which the executor keeps up with the arrivals. The batch is dispatched when
    the earliest deadline leaves just its predicted time (`a + b·n` and twice its usual deviation). It is small enough
    for that deadline, unless the executor would then fall behind, and requests that cannot be in time are refused. A
    deadline is the caller's own or `slo_s` after the arrival, whichever is sooner; only the caller's own leads to a
    refusal.

    Sources: Clipper (Crankshaw et al., NSDI 2017) sizes batches by a latency objective; Nexus (SOSP 2019) drops early;
    Clockwork (Gujarati et al., OSDI 2020) refuses by predicted time, since a model's time is predictable.
    """

    name: ClassVar[str] = "slo"

    max_batch_size: Size
    max_wait_s: float = 0.1
    slo_s: float = math.inf
    spare: Annotated[float, Within(1, 10)] = 1.1
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand > 0:
            decision = ahead(queue, now, self.max_batch_size, self.lead_s)
            return sparing(decision, queue, now)
        if queue.depth is None:
            return Look()
        if queue.depth == 0:
            return Wait()
        planned = plan(queue, now, self.max_batch_size, min(queue.due_at, queue.oldest_at + self.slo_s), self.spare)
        if queue.depth >= planned.size:
            full = planned.size == self.max_batch_size
            return Dispatch(planned.size, Reason.FULL if full else Reason.DEADLINE, planned.margin_s)
        efficient = queue.learnt.time.keeps_up(self.spare * queue.learnt.rate, self.max_batch_size)
        if queue.depth >= efficient:
            return Dispatch(planned.size, Reason.IDLE, planned.margin_s)
        due, reason = queue.oldest_at + self.max_wait_s, Reason.DELAY
        if planned.close_at < due:
            due, reason = planned.close_at, Reason.DEADLINE
        return Dispatch(planned.size, reason, planned.margin_s) if now >= due else Wait(until=due)


def sparing(decision: Decision, queue: QueueView, now: float) -> Decision:
    """A batch that is claimed ahead, without requests that would be late after both batches."""
    if not isinstance(decision, Dispatch) or math.isinf(queue.due_at) or queue.learnt.time.weight < SURE:
        return decision
    margin_s = max(0.0, queue.free_at - now) + queue.learnt.time.predict(decision.size)
    return decision._replace(margin_s=margin_s)
