"""The statuses that `submit.lua` returns for the requests of a flush, and the errors that callers get for refusals.

`Status` is the one table of it: the script reads it by name (`Status.RATE`), callers get its errors, and a test
compares docs/operations.md with it. A refusal is called as in `batching.policy.Shed`, whose value is a metric's label.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, unique

from batching.policy import Shed
from tasks.client.dedup import Repeated
from tasks.errors import IdempotencyConflict, RateLimited, Refused, ServiceOverloaded
from tasks.protocol.outgoing import Outgoing


class StatusRow(Enum):
    """One character; for a refusal also the error and its text."""

    def __init__(self, code: str, error: type[Refused] | None = None, text: str = "") -> None:
        self.code = code
        self.error = error
        self.text = text

    @property
    def reason(self) -> str:
        """The reason of a refusal. Raises KeyError for one that `Shed` does not know."""
        return Shed[self.name].value


@unique
class Status(StatusRow):
    """Every status that the script returns."""

    QUEUED = ("0",)
    QUEUE_FULL = ("1", ServiceOverloaded, "the queue of {model} is full")
    RATE = ("2", RateLimited, "this API key is limited to {rpm} requests a minute; slow down")
    MEMORY = ("3", RateLimited, "the queue's memory is nearly full; try again shortly")
    PRESSURE = ("4", ServiceOverloaded, "too many requests wait for {model} to admit more of this tier")
    SHARE = ("5", RateLimited, "this API key already has its share of the queue of {model}")
    DEADLINE = ("6", ServiceOverloaded, "{model} could not answer this request before its deadline")
    # For repeated requests (`tasks.client.dedup`).
    CONFLICT = ("7",)
    """The Idempotency-Key was used for a different request."""
    REPEATED = ("8",)
    """The request gets the outcome of another one, whose id is the detail."""
    ANSWERED = ("a",)
    """The answer comes from the cache; to its caller the request looks queued."""
    JOINED = ("j",)
    """The answer is being computed for an identical request; to its caller the request looks queued."""


QUEUED = Status.QUEUED.code.encode()
_BY_BYTE: dict[int, StatusRow] = {ord(status.code): status for status in Status}
_ANSWERED = ord(Status.ANSWERED.code)
_ACCEPTED = frozenset(ord(status.code) for status in (Status.QUEUED, Status.ANSWERED, Status.JOINED))


def refusals(answer: bytes, batch: list[Outgoing]) -> Iterator[Refused | IdempotencyConflict | Repeated | None]:
    """The result of each request of a flush: None if it was accepted, else its error, or whose outcome it gets."""
    statuses, _, details = answer.partition(b"\n")
    each = iter(details.split(b","))
    for status, out in zip(statuses, batch, strict=True):
        yield None if status in _ACCEPTED else _error(status, next(each), out)


def answered(answer: bytes, batch: list[Outgoing]) -> Iterator[Outgoing]:
    """The requests of a flush that were answered from the cache."""
    # The bytes after the statuses belong to no single request.
    return (out for status, out in zip(answer, batch, strict=False) if status == _ANSWERED)


def _error(byte: int, detail: bytes, out: Outgoing) -> Refused | IdempotencyConflict | Repeated:
    status = _BY_BYTE[byte]
    if status is Status.REPEATED:
        return Repeated(detail.partition(b";")[0].decode())
    if status.error is None:
        return IdempotencyConflict("this Idempotency-Key was used for a different request; use a new one")
    retry_ms, remaining, whole_ms = (int(part) for part in detail.split(b";"))
    quota = out.quota
    message = status.text.format(model=out.submission.model, rpm=quota.rpm if quota else 0)
    limits = (quota.rpm, quota.burst, remaining, whole_ms / 1000) if quota else None
    return status.error(message, retry_ms / 1000, status.reason, limits)
