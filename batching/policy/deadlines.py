"""Batch sizes for the deadlines of a queue, and the requests that are hopeless.

The rule is "early drop" of Nexus (Shen et al., SOSP 2019): under overload, a server that gives each request its last
chance runs ever smaller batches and falls further behind. So the size is at least the one that keeps up with the
arrivals, and a request that would be late in a batch of that size is refused, while its caller has time to react.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from batching.policy.base import QueueView

# A line through fewer batches refuses nothing.
SURE = 5.0
# An executor that has been idle this long runs any request: an estimate that refuses everything would never be
# corrected.
STALE_S = 1.0


class Plan(NamedTuple):
    """Claim at most `size` now, without requests whose deadline is nearer than `margin_s`; wait until `close_at` at
    most.
    """

    size: int
    margin_s: float
    close_at: float


def plan(queue: QueueView, now: float, max_batch_size: int, due_at: float, spare: float = 1.1) -> Plan:
    """The plan for a free executor. `due_at` is the earliest deadline; the size keeps up with `spare` times the
    arrivals.

    Without a deadline, or before enough is known of the model, the size is not reduced and nothing is refused.
    """
    time = queue.learnt.time
    depth = max_batch_size if queue.depth is None else queue.depth
    if math.isinf(due_at) or time.weight < SURE:
        return Plan(max_batch_size, 0.0, due_at - time.late(min(depth, max_batch_size)))
    least = max_batch_size if depth > max_batch_size else time.keeps_up(spare * queue.learnt.rate, max_batch_size)
    fitting = min(max_batch_size, time.fits(due_at - now))
    size = max(least, fitting, 1)
    margin_s = time.predict(min(size, max(depth, 1)))
    if queue.in_hand == 0 and now - queue.free_at > STALE_S:
        margin_s = 0.0
    return Plan(size, margin_s, due_at - time.late(min(depth + 1, size)))
