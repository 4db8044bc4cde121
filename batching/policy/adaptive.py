"""The default policy: dispatch when the executor is free, but wait briefly for returning callers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Share, Size, Wait
from batching.policy.deadlines import SURE, plan
from batching.policy.idle import ahead
from batching.policy.slo import sparing

# With an executor more, a batch must be done sooner by this much to be worth its cost besides the model's.
_NOTABLY_S = 0.002
# How long to wait for returning callers, as a multiple of the median return time.
_LAST = 1.5
# The share of the usual wait, and its maximum, when the number of callers is not known.
_LESS = 2 / 3
_LESS_S = 0.01


@dataclass(frozen=True, slots=True)
class Adaptive:
    """`WhenIdle` with a bounded wait after each batch, and with regard to deadlines.

    Callers in a closed loop send their next request when they are answered, so they all return just after a batch.
    `WhenIdle` dispatches the first of them alone, and the others wait for a batch of one: with 64 such callers and a
    batch of 50 ms that halves the throughput. So, while fewer requests wait than there are such callers, the executor
    waits for more: at most a share `gather` of the time of a batch, no longer than one more batch would take, and never
    over `max_wait_s`. Whether there are such callers is learned: recently, the middle request of a batch must have come
    just after a batch had ended. Independent callers come at any time, and are not waited for. The number of callers is
    counted when a batch ends: the requests in it, and those that wait. Where two alternating halves are served sooner,
    a batch holds half of the callers.

    Bursts are waited for in the same way, from their first request on, if recent requests mostly came in bursts:
    otherwise the first of a burst would be dispatched alone, and the others would wait for a batch of one.

    The cost is bounded by the same share. A lone caller pays nothing.

    With deadlines, a batch is small enough for the earliest one, unless the executor would then fall behind, and
    requests that cannot be in time are refused (`batching.policy.deadlines`). With other executors idle, the waiting
    requests are shared with them.
    """

    name: ClassVar[str] = "adaptive"

    max_batch_size: Size
    max_wait_s: float = 0.02
    gather: Share = 0.3
    least_s: float = 0.0005
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        most = self._most(queue)
        if queue.in_hand > 0:
            return sparing(ahead(queue, now, most, self.lead_s), queue, now)
        share_s = self._share_s(queue)
        crowded = share_s > 0 and queue.recent > 1 and queue.learnt.crowding >= 0.5 > queue.learnt.closed_loop_share
        wanted = self._wanted(queue, most)
        due = queue.free_at + self._gathering_s(queue, wanted)
        if queue.depth is None:
            return self._look(queue, now, wanted, most) if now < due or crowded else self._go(queue, now, most)
        if queue.depth == 0:
            return Wait()
        if queue.depth >= wanted:
            return self._go(queue, now, most)
        if crowded:
            due = max(due, queue.oldest_at + share_s)
        due = min(due, queue.due_at - queue.learnt.time.late(queue.depth))
        return self._go(queue, now, most) if now >= due else Wait(until=due)

    def _look(self, queue: QueueView, now: float, wanted: int, most: int) -> Look:
        if queue.idle:
            # They share what waits.
            return Look()
        time = queue.learnt.time
        if time.weight < SURE:
            return Look(Dispatch(most, Reason.IDLE), least=wanted)
        calm_s = time.late(most)
        # The margin is that of as many as there will be at least.
        margin_s = plan(queue._replace(depth=wanted), now, most, now + calm_s).margin_s
        return Look(Dispatch(most, Reason.IDLE, margin_s), wanted, calm_s)

    def _most(self, queue: QueueView) -> int:
        """The maximum size of a batch, or half of the returning callers where two alternating batches are served
        sooner.

        While one half computes, the other returns, and the executor never waits; but each batch has its fixed cost.
        """
        learnt, most = queue.learnt, self.max_batch_size
        if learnt.closed_loop_share < 0.5 or learnt.time.weight < SURE:
            return most
        every, half = min(learnt.callers, most), math.ceil(learnt.callers / 2)
        every_s = learnt.time.predict(every) + _LAST * learnt.median_return_s
        return half if half < every and half * every_s > every * learnt.time.predict(half) else most

    def _wanted(self, queue: QueueView, most: int) -> int:
        """The number of requests to wait for: all known callers when they return, otherwise as many as came
        recently.
        """
        learnt = queue.learnt
        return min(most, learnt.callers if learnt.closed_loop_share >= 0.5 and learnt.callers else queue.recent)

    def _gathering_s(self, queue: QueueView, wanted: int) -> float:
        if wanted <= 1:
            return -math.inf
        if queue.learnt.closed_loop_share < 0.5:
            return -math.inf
        time = queue.learnt.time
        if time.weight < SURE:
            return self._share_s(queue)
        # Leaving callers behind costs one more batch; its fixed part is the most that waiting can save.
        return self._worth(min(self.gather * time.predict(wanted), time.a_s))

    def _share_s(self, queue: QueueView) -> float:
        """The longest wait when the number of callers is not known: a longer one would gather many itself."""
        return self._worth(min(_LESS * self.gather * queue.batch_s, _LESS_S))

    def _worth(self, wait_s: float) -> float:
        """The wait, or none: a shorter one than `least_s` costs as much as it can save."""
        return min(wait_s, self.max_wait_s) if wait_s >= self.least_s else -math.inf

    def _go(self, queue: QueueView, now: float, most: int) -> Dispatch:
        planned = plan(queue, now, most, queue.due_at)
        if queue.depth is not None and queue.depth >= planned.size == self.max_batch_size:
            return Dispatch(planned.size, Reason.FULL, planned.margin_s)
        size = planned.size
        if queue.depth is not None and queue.idle:
            share = math.ceil(queue.depth / (1 + queue.idle))
            # Each batch has a cost besides the model's, so a smaller one must be done notably sooner.
            if queue.learnt.time.b_s * (min(queue.depth, size) - share) > _NOTABLY_S:
                size = min(size, share)
        small = planned.size < min(most, queue.depth or 0)
        return Dispatch(size, Reason.DEADLINE if small else Reason.IDLE, planned.margin_s)
