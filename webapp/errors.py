"""Error responses: one JSON shape, and one table from error code to HTTP status.

{"error": CODE, "message": text a person can act on, "request_id": …, "retry_after_ms"?: N}
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

from tasks.errors import BunchError, Refused
from webapp.request import JSON, HttpResponse

STATUS_OF: dict[str, int] = {
    "INVALID_JSON": 400,
    "INVALID_INPUT": 400,
    "INVALID_HEADER": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "UNKNOWN_MODEL": 404,
    "UNKNOWN_TASK": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "ALREADY_FINISHED": 409,
    "CANCELLED": 409,
    "IDEMPOTENCY_CONFLICT": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "INPUT_REJECTED": 422,
    # Not in the contract: its caller has disconnected, so it is seen in the metrics only.
    "CALLER_GONE": 499,
    "RATE_LIMITED": 429,
    "INFERENCE_FAILED": 500,
    "INTERNAL": 500,
    "SERVICE_OVERLOADED": 503,
    "MODEL_UNAVAILABLE": 503,
    "BACKEND_UNAVAILABLE": 503,
    "SHUTTING_DOWN": 503,
    "DEADLINE_EXCEEDED": 504,
}


_WORTH_ANOTHER_TRY = frozenset({"BACKEND_UNAVAILABLE", "MODEL_UNAVAILABLE"})


class ApiError(Exception):
    """A refusal by the frontend itself."""

    def __init__(
        self, code: str, message: str, headers: tuple[tuple[str, str], ...] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(code, message, headers, retry_after_s)
        self.code = code
        self.message = message
        self.headers = headers
        self.retry_after_s = 1.0 if code in _WORTH_ANOTHER_TRY else retry_after_s


class Envelope(Protocol):
    """The form of an endpoint's errors: ours is `error_answer`, those of other APIs are in `webapp.api.doors`."""

    def __call__(
        self,
        code: str,
        message: str,
        request_id: str,
        *,
        retry_after_s: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> HttpResponse: ...


def error_answer(
    code: str,
    message: str,
    request_id: str,
    *,
    retry_after_s: float | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> HttpResponse:
    body: dict[str, object] = {"error": code, "message": message, "request_id": request_id}
    extra = list(headers)
    if retry_after_s is not None:
        body["retry_after_ms"] = math.ceil(retry_after_s * 1000)
        extra.append(("Retry-After", str(max(1, math.ceil(retry_after_s)))))
    return HttpResponse(STATUS_OF[code], msgspec.json.encode(body), request_id, JSON, tuple(extra))


def bunch_error_answer(error: BunchError, request_id: str, envelope: Envelope = error_answer) -> HttpResponse:
    headers = _limit_headers(*error.limits) if isinstance(error, Refused) and error.limits else ()
    return envelope(error.code, error.message, request_id, retry_after_s=error.retry_after_s, headers=headers)


def _limit_headers(rpm: int, burst: int, remaining: int, whole_s: float) -> tuple[tuple[str, str], ...]:
    """The fields of draft-ietf-httpapi-ratelimit-headers: requests a minute, burst, and what is left of it."""
    window_s = math.ceil(burst * 60 / rpm)
    return (
        ("RateLimit-Policy", f'"minute";q={rpm};w=60, "burst";q={burst};w={window_s}'),
        ("RateLimit", f'"burst";r={remaining};t={math.ceil(whole_s)}'),
    )
