"""What the policies with a window have in common: full, or over, or too late for somebody's deadline."""

from __future__ import annotations

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Wait
from batching.policy.idle import ahead


def in_window(
    queue: QueueView, now: float, *, size: int, wait_s: float, lead_s: float, keep_deadlines: bool = True
) -> Decision:
    """Go when `size` wait, or when the oldest has waited `wait_s`; with `keep_deadlines`, soon enough for all of them.

    Ahead of the executor coming free (`lead_s`) only a full batch goes, as in `WhenIdle`.
    """
    if queue.in_hand > 0:
        return ahead(queue, now, size, lead_s)
    if queue.depth is None:
        return Look()
    if queue.depth >= size:
        return Dispatch(size, Reason.FULL)
    if queue.depth == 0:
        return Wait()
    # From the oldest request, not from the last flush: a timer's phase would let a request wait anywhere
    # between nothing and the whole window.
    due = queue.oldest_at + wait_s
    reason = Reason.DELAY
    if keep_deadlines:
        last_call = queue.due_at - queue.learnt.time.late(queue.depth)
        if last_call < due:
            due, reason = last_call, Reason.DEADLINE
    return Dispatch(size, reason) if now >= due else Wait(until=due)
