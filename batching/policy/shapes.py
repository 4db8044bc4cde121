"""Rounds batches for a model that is run with a few sizes only: one between two of them is made smaller, or padded.

    depth 40 of sizes 32, 64 ──▶ 32 now, and 8 with the next batch    if the executor loses nothing by it
                             └─▶ 40, computed as 64                   otherwise

It applies to what any policy dispatches, since no policy need know of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batching.batch_sizes import padded, whole
from batching.policy.base import Dispatch, Look, QueueView
from batching.policy.deadlines import SURE


def rounded(decision: Dispatch, queue: QueueView, now: float, sizes: Sequence[int]) -> Dispatch | Look:
    """The same dispatch with one of `sizes`, or a look where the number of requests is not known yet.

    The claim takes no more requests than the padded size has rows: one more would cost a larger size.
    """
    most = min(decision.size, sizes[-1])
    if queue.depth is None:
        return decision._replace(size=most) if most <= sizes[0] else Look()
    count = max(1, min(queue.depth, most))
    down = whole(count, sizes)
    if 0 < down < count and _pays(queue, now, count, down):
        # A margin for a larger batch would refuse requests that are in time in this one.
        margin_s = max(0.0, queue.free_at - now) + queue.learnt.time.predict(down)
        return decision._replace(size=down, margin_s=min(decision.margin_s, margin_s))
    return decision._replace(size=min(padded(count, sizes), most))


def _pays(queue: QueueView, now: float, count: int, down: int) -> bool:
    """Return whether `down` requests now, and the rest with the next batch, are better than all with padding.

    They are when both batches together take no longer than the padded one; or when more requests are to come, as many
    as make the next batch as large as this one, and the executor serves as many per second. Another idle executor takes
    the rest at once. Nothing is left behind that would miss the earliest deadline.
    """
    time, rest = queue.learnt.time, count - down
    if time.weight < SURE:
        return False
    down_s, up_s, rest_s = time.predict(down), time.predict(count), time.predict(rest)
    if queue.idle:
        return max(down_s, rest_s) < up_s
    begins_at = max(now, queue.free_at)
    if not math.isinf(queue.due_at) and begins_at + down_s + time.late(rest) > queue.due_at:
        return False
    if down_s + rest_s <= up_s:
        return True
    come = rest + queue.learnt.rate * down_s
    return come >= down and down * up_s >= count * down_s
