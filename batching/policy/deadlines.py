"""How large a batch may be for the deadlines in it, and who is not worth starting any more.

From Nexus (Shen et al., SOSP 2019), "early drop": under overload a server that gives each request its last chance runs
ever smaller batches and falls further behind. So the size is at least the one that keeps up with the arrivals, and who
would not be done with a batch of that size is refused, while there is time for its caller to do something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from batching.policy.base import QueueView

# A line through fewer batches refuses nobody.
SURE = 5.0
# An executor that has done nothing for so long runs whatever there is: an estimate that refuses everybody would never
# be corrected.
STALE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """At most `size` now, without those whose deadline is nearer than `margin_s`; by `close_at` at the latest."""

    size: int
    margin_s: float
    close_at: float


def plan(queue: QueueView, now: float, max_batch_size: int, due_at: float, spare: float = 1.1) -> Plan:
    """For a free executor. `due_at` is the earliest deadline; `spare` times the arrivals must be kept up with.

    Without a deadline, or before enough is known of the model, nothing is smaller than it could be and nobody refused.
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
