"""What `submit.lua` says of the requests that it did not let in, as errors that a caller can be told.

status  reason      error
1       queue_full  ServiceOverloaded  503  the queue's hard limit
2       rate        RateLimited        429  the key asks too often
3       memory      RateLimited        429  Redis is nearly full
4       pressure    ServiceOverloaded  503  too much waits for a request of this tier
5       share       RateLimited        429  too much of the same key waits
6       deadline    ServiceOverloaded  503  it would not be served in time

And of those that were asked before (`tasks.client.dedup`):

7                   IdempotencyConflict  409  the same Idempotency-Key, another question
8                   Repeated, no error: the id of the request whose outcome it gets
a, j                none: queued, as far as its caller can tell; its answer is under way, or computed for others as well
"""

from __future__ import annotations

from collections.abc import Iterator

from batching.policy import Shed
from tasks.client.dedup import Repeated
from tasks.errors import IdempotencyConflict, RateLimited, Refused, ServiceOverloaded
from tasks.protocol.messages import Outgoing

QUEUED = b"0"
_CONFLICT = 0x37
_REPEATED = 0x38
_ANSWERED = 0x61
_JOINED = 0x6A
_ACCEPTED = frozenset({*QUEUED, _ANSWERED, _JOINED})

_ERRORS: dict[int, tuple[type[Refused], Shed, str]] = {
    0x31: (ServiceOverloaded, Shed.QUEUE_FULL, "the queue of {model} is full"),
    0x32: (RateLimited, Shed.RATE, "this key may ask {rpm} times a minute; slow down"),
    0x33: (RateLimited, Shed.MEMORY, "the queue's memory is nearly full; try again shortly"),
    0x34: (ServiceOverloaded, Shed.PRESSURE, "too much waits for {model} to take in more of this tier"),
    0x35: (RateLimited, Shed.SHARE, "this key has its share of the queue of {model} already"),
    0x36: (ServiceOverloaded, Shed.DEADLINE, "{model} could not answer this within its time"),
}


def refusals(answer: bytes, batch: list[Outgoing]) -> Iterator[Refused | IdempotencyConflict | Repeated | None]:
    """For each request of a flush: None when it is taken, else why not, or whose outcome it gets."""
    statuses, _, details = answer.partition(b"\n")
    each = iter(details.split(b","))
    for status, out in zip(statuses, batch, strict=True):
        yield None if status in _ACCEPTED else _error(status, next(each), out)


def answered(answer: bytes, batch: list[Outgoing]) -> Iterator[Outgoing]:
    """Those that got their answer from the cache."""
    # What follows the statuses is of no request.
    return (out for status, out in zip(answer, batch, strict=False) if status == _ANSWERED)


def _error(status: int, detail: bytes, out: Outgoing) -> Refused | IdempotencyConflict | Repeated:
    if status == _REPEATED:
        return Repeated(detail.partition(b";")[0].decode())
    if status == _CONFLICT:
        return IdempotencyConflict("this Idempotency-Key has been used for another request; take a new one")
    kind, reason, text = _ERRORS[status]
    retry_ms, remaining, whole_ms = (int(part) for part in detail.split(b";"))
    quota = out.quota
    message = text.format(model=out.model, rpm=quota.rpm if quota else 0)
    limits = (quota.rpm, quota.burst, remaining, whole_ms / 1000) if quota else None
    return kind(message, retry_ms / 1000, reason.value, limits)
