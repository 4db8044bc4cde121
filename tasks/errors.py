"""What a caller of `tasks.client` can be told, and what a failed task's result names.

BunchError                 `code` is the contract's; the frontend maps codes to HTTP numbers in one table
├── InputRejected          the model refused this input
├── InvalidInput           the input has the wrong type for this model
├── InferenceFailed        attempts used up, or the model broke its contract
├── DeadlineExceeded       no answer within the caller's time
├── TaskCancelled          taken back by its caller
├── CallerGone             the caller hung up; nobody sees this one
├── ServiceOverloaded      refused at the door: the queue is full
└── BackendUnavailable     Redis is away, or did not answer in time
"""

from __future__ import annotations

from typing import ClassVar


class BunchError(Exception):
    """Base of all; positional arguments only, since Celery rebuilds exceptions from their arguments."""

    code: ClassVar[str] = "INTERNAL"
    retry_after_s: ClassVar[float | None] = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class InputRejected(BunchError):
    code = "INPUT_REJECTED"


class InvalidInput(BunchError):
    code = "INVALID_INPUT"


class InferenceFailed(BunchError):
    code = "INFERENCE_FAILED"


class DeadlineExceeded(BunchError):
    code = "DEADLINE_EXCEEDED"


class TaskCancelled(BunchError):
    code = "CANCELLED"


class CallerGone(BunchError):
    code = "CALLER_GONE"


class ServiceOverloaded(BunchError):
    code = "SERVICE_OVERLOADED"
    retry_after_s = 1.0


class BackendUnavailable(BunchError):
    code = "BACKEND_UNAVAILABLE"
    retry_after_s = 1.0


BY_CODE: dict[str, type[BunchError]] = {
    cls.code: cls
    for cls in (
        InputRejected,
        InvalidInput,
        InferenceFailed,
        DeadlineExceeded,
        TaskCancelled,
        ServiceOverloaded,
        BackendUnavailable,
    )
}
