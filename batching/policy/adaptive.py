"""The default: go when the executor is free, but let the callers who have just been answered come back first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Share, Size, Wait
from batching.policy.deadlines import SURE, plan
from batching.policy.idle import ahead
from batching.policy.slo import sparing

# A batch that is quicker than this costs the worker and Redis as much as the model: gathering a little always pays.
_QUICK_S = 0.01
# How long to wait for returning callers, as a multiple of the median return time.
_LAST = 1.5
# Of the usual share, and at most, where the number of callers is not known.
_LESS = 2 / 3
_LESS_S = 0.01


@dataclass(frozen=True, slots=True)
class Adaptive:
    """`WhenIdle`, with a bounded moment of gathering after each batch, and with an eye on deadlines.

    Callers who wait for an answer before they ask again come back all at once, just after a batch. `WhenIdle` sends the
    first of them off alone, and all the others wait for a batch of one: with 64 such callers and a batch of 50 ms that
    halves the throughput. So, while fewer wait than there are such callers, the executor waits for more: at most a
    share `gather` of what a batch takes, no longer than one batch more would take, and never over `max_wait_s`. Whether
    there are such callers is learnt: of late, the middle request of a batch must have come just after a batch had
    ended. Independent callers come at any time, and are not waited for. How many they are is seen when a batch ends:
    those in it, and those who wait. Where two halves in turn serve them sooner, a batch holds half of them.

    Callers who come together are waited for in the same way, from the first of them on, where that has been the rule of
    late: else the first of a burst would go alone, and all the others wait for a batch of one.

    The cost is bounded by the same share. A lone caller pays nothing.

    With deadlines a batch is kept small enough for the earliest, unless it would then fall behind, and who cannot be in
    time any more is refused: `batching.policy.deadlines`. With other executors idle, what waits is shared with them.
    """

    name: ClassVar[str] = "adaptive"

    max_batch_size: Size
    max_wait_s: float = 0.02
    gather: Share = 0.3
    least_s: float = 0.002
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        most = self._most(queue)
        if queue.in_hand > 0:
            return sparing(ahead(queue, now, most, self.lead_s), queue, now)
        crowded = queue.recent > 1 and queue.learnt.crowding >= 0.5 > queue.learnt.closed_loop_share
        wanted = self._wanted(queue, most)
        due = queue.free_at + self._gathering_s(queue, wanted)
        if queue.depth is None:
            return Look() if now < due or crowded else self._go(queue, now, most)
        if queue.depth == 0:
            return Wait()
        if queue.depth >= wanted:
            return self._go(queue, now, most)
        if crowded:
            due = max(due, queue.oldest_at + self._share_s(queue))
        due = min(due, queue.due_at - queue.learnt.time.late(queue.depth))
        return self._go(queue, now, most) if now >= due else Wait(until=due)

    def _most(self, queue: QueueView) -> int:
        """Of a batch: the maximum, or half of the callers who come back, where two batches in turn serve them sooner.

        While one half computes the other comes back, and no executor waits for it; but each batch has its fixed cost.
        """
        learnt, most = queue.learnt, self.max_batch_size
        if learnt.closed_loop_share < 0.5 or learnt.time.weight < SURE:
            return most
        every, half = min(learnt.callers, most), math.ceil(learnt.callers / 2)
        every_s = learnt.time.predict(every) + _LAST * learnt.median_return_s
        return half if half < every and half * every_s > every * learnt.time.predict(half) else most

    def _wanted(self, queue: QueueView, most: int) -> int:
        """All who are known, where they come back; else as many as came of late."""
        learnt = queue.learnt
        return min(most, learnt.callers if learnt.closed_loop_share >= 0.5 and learnt.callers else queue.recent)

    def _gathering_s(self, queue: QueueView, wanted: int) -> float:
        if wanted <= 1:
            return -math.inf
        if queue.learnt.closed_loop_share < 0.5:
            return min(self.least_s, self.max_wait_s) if queue.batch_s < _QUICK_S else -math.inf
        time = queue.learnt.time
        if time.weight < SURE:
            return self._share_s(queue)
        # Who is left behind costs one batch more; its fixed part is the most that waiting can save.
        share_s = min(self.gather * time.predict(wanted), time.a_s)
        return min(max(self.least_s, share_s), self.max_wait_s)

    def _share_s(self, queue: QueueView) -> float:
        """Where it is not known how many come. A long wait would see to it that many do, whoever they are."""
        return min(max(self.least_s, _LESS * self.gather * queue.batch_s), self.max_wait_s, _LESS_S)

    def _go(self, queue: QueueView, now: float, most: int) -> Dispatch:
        planned = plan(queue, now, most, queue.due_at)
        if queue.depth is not None and queue.depth >= planned.size == self.max_batch_size:
            return Dispatch(planned.size, Reason.FULL, planned.margin_s)
        size = planned.size
        if queue.depth is not None and queue.idle:
            share = math.ceil(queue.depth / (1 + queue.idle))
            # Each batch has a cost beside the model's, so only where the smaller one is done notably sooner.
            if queue.learnt.time.b_s * (min(queue.depth, size) - share) > self.least_s:
                size = min(size, share)
        small = planned.size < min(most, queue.depth or 0)
        return Dispatch(size, Reason.DEADLINE if small else Reason.IDLE, planned.margin_s)
