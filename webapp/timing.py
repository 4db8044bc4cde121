"""Where an answer's time went, for its `metadata` and, short, for its `Server-Timing` header.

Everything up to the executor's answer is measured by the worker and comes with the reply; what remains of the latency
is the way back: storing, publishing, and this process.
"""

from __future__ import annotations

import msgspec

from tasks.results import Reply

# By the names that `explain` has for them.
STAGES = ("admission", "queue", "batch_wait", "transfer", "compute", "reply")


class _Times(msgspec.Struct):
    admission_ms: float = 0.0
    queue_ms: float = 0.0
    batch_wait_ms: float = 0.0
    transfer_ms: float = 0.0
    compute_ms: float = 0.0


_HEADER = ", ".join(f"{stage};dur=%.3f" for stage in STAGES)
_decode = msgspec.json.Decoder(_Times).decode


def timed(reply: Reply, latency_ms: float) -> tuple[float, tuple[tuple[str, str], ...]]:
    """The time that the reply took, in ms, and the header."""
    times = _decode(reply.bunch)
    known = (times.admission_ms, times.queue_ms, times.batch_wait_ms, times.transfer_ms, times.compute_ms)
    reply_ms = max(0.0, latency_ms - sum(known))
    return reply_ms, (("Server-Timing", _HEADER % (*known, reply_ms)),)
