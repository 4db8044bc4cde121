"""Where an answer's time went, for its `metadata` and, short, for its `Server-Timing` header.

Everything up to the executor's answer is measured by the worker and comes with the reply; what remains of the latency
is the way back: storing, publishing, and this process.
"""

from __future__ import annotations

import msgspec

from tasks.protocol.results import Reply


class _Times(msgspec.Struct):
    # By Redis' clock, which counts whole milliseconds here.
    admission_ms: int = 0
    queue_ms: int = 0
    batch_wait_ms: float = 0.0
    transfer_ms: float = 0.0
    compute_ms: float = 0.0


_decode = msgspec.json.Decoder(_Times).decode


def timed(reply: Reply, latency_ms: float) -> tuple[float, tuple[tuple[str, str], ...]]:
    """The time that the reply took, in ms, and the header, with the names that `explain` has for the parts."""
    times = _decode(reply.bunch)
    admission, queue, compute = times.admission_ms, times.queue_ms, times.compute_ms
    batch_wait, transfer = times.batch_wait_ms, times.transfer_ms
    reply_ms = latency_ms - admission - queue - batch_wait - transfer - compute
    if reply_ms < 0:
        reply_ms = 0.0
    header = (
        f"admission;dur={admission}, queue;dur={queue}, batch_wait;dur={batch_wait:.3f}, transfer;dur={transfer:.3f}, "
        f"compute;dur={compute:.3f}, reply;dur={reply_ms:.3f}"
    )
    return reply_ms, (("Server-Timing", header),)
