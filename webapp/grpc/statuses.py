"""The status of an RPC for each error code of the contract: the one table, beside `webapp.errors` for HTTP."""

from __future__ import annotations

import grpc

from tasks.errors import BunchError
from webapp.errors import ApiError

_S = grpc.StatusCode
# Characters; each may become nine bytes, percent-encoded.
_MOST_DETAILS = 500
STATUS_OF = {
    "INVALID_JSON": _S.INVALID_ARGUMENT,
    "INVALID_INPUT": _S.INVALID_ARGUMENT,
    "INVALID_HEADER": _S.INVALID_ARGUMENT,
    "UNAUTHENTICATED": _S.UNAUTHENTICATED,
    "FORBIDDEN": _S.PERMISSION_DENIED,
    "UNKNOWN_MODEL": _S.NOT_FOUND,
    "UNKNOWN_TASK": _S.NOT_FOUND,
    "NOT_FOUND": _S.NOT_FOUND,
    "METHOD_NOT_ALLOWED": _S.INVALID_ARGUMENT,
    "ALREADY_FINISHED": _S.INVALID_ARGUMENT,
    "CANCELLED": _S.CANCELLED,
    "IDEMPOTENCY_CONFLICT": _S.INVALID_ARGUMENT,
    "PAYLOAD_TOO_LARGE": _S.INVALID_ARGUMENT,
    "UNSUPPORTED_MEDIA_TYPE": _S.INVALID_ARGUMENT,
    "INPUT_REJECTED": _S.INVALID_ARGUMENT,
    "CALLER_GONE": _S.CANCELLED,
    "RATE_LIMITED": _S.RESOURCE_EXHAUSTED,
    "INFERENCE_FAILED": _S.INTERNAL,
    "INTERNAL": _S.INTERNAL,
    "SERVICE_OVERLOADED": _S.RESOURCE_EXHAUSTED,
    "MODEL_UNAVAILABLE": _S.UNAVAILABLE,
    "BACKEND_UNAVAILABLE": _S.UNAVAILABLE,
    "SHUTTING_DOWN": _S.UNAVAILABLE,
    "DEADLINE_EXCEEDED": _S.DEADLINE_EXCEEDED,
}


def details(message: str) -> str:
    """The text of a status: it travels as a header field, of which clients take some kilobytes in all."""
    return message if len(message) <= _MOST_DETAILS else f"{message[:_MOST_DETAILS]}…"


def trailing(error: BunchError | ApiError, request_id: str) -> tuple[tuple[str, str], ...]:
    """The metadata that comes with a status: the request's id, our code, and when to try again."""
    about = (("x-request-id", request_id), ("bunch-error", error.code))
    if error.retry_after_s is None:
        return about
    return (*about, ("retry-after-ms", str(int(error.retry_after_s * 1000))))
