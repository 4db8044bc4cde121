"""The stages of an answer's latency, for its `metadata` and, in short, for its `Server-Timing` header.

The worker measures everything up to the executor's answer and sends it with the reply. The rest of the latency is the
way back: storing, publishing, and this process.
"""

from __future__ import annotations

import msgspec

from tasks.protocol.results import Reply


class _Times(msgspec.Struct):
    # By Redis' clock, in whole milliseconds.
    admission_ms: int = 0
    queue_ms: int = 0
    batch_wait_ms: float = 0.0
    transfer_ms: float = 0.0
    compute_ms: float = 0.0


_decode = msgspec.json.Decoder(_Times).decode


def times_of(reply: Reply) -> tuple[int, int, float, float, float]:
    """Admission, queue, batch wait, transfer and compute of a reply, in ms."""
    times = _decode(reply.bunch)
    return times.admission_ms, times.queue_ms, times.batch_wait_ms, times.transfer_ms, times.compute_ms


def header_of(latency_ms: float, times: tuple[int, int, float, float, float]) -> tuple[str, float]:
    """The `Server-Timing` header, with `explain`'s names of the stages, and the time of the way back in ms."""
    admission, queue, batch_wait, transfer, compute = times
    reply_ms = latency_ms - admission - queue - batch_wait - transfer - compute
    if reply_ms < 0:
        reply_ms = 0.0
    header = (
        f"admission;dur={admission}, queue;dur={queue}, batch_wait;dur={batch_wait:.3f}, transfer;dur={transfer:.3f}, "
        f"compute;dur={compute:.3f}, reply;dur={reply_ms:.3f}"
    )
    return header, reply_ms
