"""Errors that a caller of `tasks.client.client` can get, and that a failed task's result names.

BunchError                 `code` is the contract's; the frontend maps codes to HTTP statuses in one table
├── InputRejected          the model refused this input
├── InvalidInput           the input has the wrong type for this model
├── PayloadTooLarge        what the input refers to is larger than an input may be
├── InferenceFailed        every attempt failed, or the model broke its contract
├── DeadlineExceeded       no answer before the request's deadline
├── TaskCancelled          cancelled by its caller
├── IdempotencyConflict    the Idempotency-Key was used for a different request
├── CallerGone             the caller disconnected; seen in metrics only
├── Refused                not admitted; carries when to try again
│   ├── ServiceOverloaded  too many requests wait already
│   └── RateLimited        this caller exceeds its rate or its share
├── ModelUnavailable       no executor can run this model now
├── ShuttingDown           the frontend is stopping, and its time for draining is over
└── BackendUnavailable     Redis cannot be reached, or did not answer in time
"""

from __future__ import annotations

from typing import ClassVar


class BunchError(Exception):
    """Base class; takes positional arguments only, since Celery rebuilds exceptions from their arguments."""

    code: ClassVar[str] = "INTERNAL"
    retry_after_s: float | None = None
    reason: str = ""
    """The reason of a refusal, as `bunch_shed_total` counts it; empty for every other error."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class InputRejected(BunchError):
    code = "INPUT_REJECTED"


class InvalidInput(BunchError):
    code = "INVALID_INPUT"


class PayloadTooLarge(BunchError):
    code = "PAYLOAD_TOO_LARGE"


class InferenceFailed(BunchError):
    code = "INFERENCE_FAILED"


class DeadlineExceeded(BunchError):
    code = "DEADLINE_EXCEEDED"


class TaskCancelled(BunchError):
    code = "CANCELLED"


class IdempotencyConflict(BunchError):
    code = "IDEMPOTENCY_CONFLICT"


class CallerGone(BunchError):
    code = "CALLER_GONE"


class Refused(BunchError):
    """`limits`, for a caller with a quota: requests a minute, burst, requests left of the burst, seconds until it is
    full.
    """

    def __init__(
        self,
        message: str = "",
        retry_after_s: float = 1.0,
        reason: str = "",
        limits: tuple[int, int, int, float] | None = None,
    ) -> None:
        super().__init__(message)
        self.args = (message, retry_after_s, reason, limits)
        self.retry_after_s = retry_after_s
        self.reason = reason
        self.limits = limits

    def __str__(self) -> str:
        return self.message


class ServiceOverloaded(Refused):
    code = "SERVICE_OVERLOADED"


class RateLimited(Refused):
    code = "RATE_LIMITED"


class BackendUnavailable(BunchError):
    code = "BACKEND_UNAVAILABLE"
    retry_after_s = 1.0


class ModelUnavailable(BunchError):
    code = "MODEL_UNAVAILABLE"

    def __init__(self, message: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.args = (message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class ShuttingDown(BunchError):
    code = "SHUTTING_DOWN"
    retry_after_s = 1.0


BY_CODE: dict[str, type[BunchError]] = {
    cls.code: cls
    for cls in (
        InputRejected,
        InvalidInput,
        PayloadTooLarge,
        InferenceFailed,
        DeadlineExceeded,
        TaskCancelled,
        ServiceOverloaded,
        RateLimited,
        BackendUnavailable,
    )
}
