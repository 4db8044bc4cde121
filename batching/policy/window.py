"""The rule that the policies with a window share: a full batch, the end of the window, or a deadline."""

from __future__ import annotations

from batching.policy.base import Decision, Dispatch, Look, QueueView, Reason, Wait
from batching.policy.idle import ahead


def in_window(
    queue: QueueView, now: float, *, size: int, wait_s: float, lead_s: float, keep_deadlines: bool = True
) -> Decision:
    """Dispatch when `size` wait, or when the oldest has waited `wait_s`; with `keep_deadlines`, soon enough for all of
    them.

    Before the executor is free (`lead_s`), only a full batch is dispatched, as in `WhenIdle`.
    """
    if queue.in_hand > 0:
        return ahead(queue, now, size, lead_s)
    if queue.depth is None:
        return Look(Dispatch(size, Reason.FULL), least=size)
    if queue.depth >= size:
        return Dispatch(size, Reason.FULL)
    if queue.depth == 0:
        return Wait()
    # Counted from the oldest request, not from the last flush: with a timer's phase a request could wait any time
    # between nothing and the whole window.
    due = queue.oldest_at + wait_s
    reason = Reason.DELAY
    if keep_deadlines:
        last_call = queue.due_at - queue.learnt.time.late(queue.depth)
        if last_call < due:
            due, reason = last_call, Reason.DEADLINE
    return Dispatch(size, reason) if now >= due else Wait(until=due)
