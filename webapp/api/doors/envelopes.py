"""The errors of each door: its form around the same causes, on top of the one status table (`webapp.errors`).

| door   | body                                                                          | statuses                  |
|--------|-------------------------------------------------------------------------------|---------------------------|
| openai | `{"error": {"message", "type", "param", "code"}}`                             | as everywhere             |
| rerank | `{"message", "detail", "code", "id"}`: Cohere's clients read `message`, Jina's `detail` | as everywhere   |
| tei    | `{"error": text, "error_type": …}`                                            | its own, `_TEI`           |
| kserve | `{"error": text}`                                                             | as everywhere             |

An envelope is called as `webapp.errors.error_answer` is.
"""

from __future__ import annotations

import math
import re

import msgspec
from msgspec import structs

from webapp.errors import STATUS_OF, error_answer
from webapp.request import HttpResponse

Headers = tuple[tuple[str, str], ...]

_encode = msgspec.json.encode
# The field that a message is about, in front of it.
_FIELD = re.compile(r"([a-z_]+(?:\[[0-9.]+\]|\.[a-z_]+)*): ")
_BY_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# The words that OpenAI's own API has for them; a code without one is ours in lower case.
_OPENAI_CODES = {
    "UNAUTHENTICATED": "invalid_api_key",
    "UNKNOWN_MODEL": "model_not_found",
    "RATE_LIMITED": "rate_limit_exceeded",
}
# With these another try may succeed, after the time that the answer names.
_MAY_PASS = frozenset(
    {"RATE_LIMITED", "SERVICE_OVERLOADED", "MODEL_UNAVAILABLE", "BACKEND_UNAVAILABLE", "SHUTTING_DOWN"}
)
# OpenAI's clients ignore a longer `retry-after` and come back within seconds.
_LONGEST_RETRY_S = 60.0

# TEI's status and `error_type`; a code that is not here keeps its status and is `validation` below 500, else `backend`.
_TEI: dict[str, tuple[int, str]] = {
    "INVALID_INPUT": (422, "validation"),
    "INPUT_REJECTED": (422, "tokenizer"),
    "UNKNOWN_MODEL": (424, "backend"),
    "INFERENCE_FAILED": (424, "backend"),
    "RATE_LIMITED": (429, "overloaded"),
    "SERVICE_OVERLOADED": (429, "overloaded"),
    "MODEL_UNAVAILABLE": (503, "unhealthy"),
    "BACKEND_UNAVAILABLE": (503, "unhealthy"),
    "SHUTTING_DOWN": (503, "unhealthy"),
}


def openai_error(
    code: str, message: str, request_id: str, *, retry_after_s: float | None = None, headers: Headers = ()
) -> HttpResponse:
    """OpenAI's form. `x-should-retry` keeps its clients, which repeat any 409 and 5xx twice, from doing so in vain."""
    status = STATUS_OF[code]
    field = _FIELD.match(message) if status == 400 else None
    error = {
        "message": message,
        "type": _BY_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": field[1] if field else ("model" if code == "UNKNOWN_MODEL" else None),
        "code": _OPENAI_CODES.get(code, code.lower()),
    }
    # Who is over a rate that no later try is within is told no time.
    wait_s = math.inf if retry_after_s is None and code == "RATE_LIMITED" else retry_after_s or 0.0
    helps = code in _MAY_PASS and wait_s <= _LONGEST_RETRY_S
    more: Headers = (("x-should-retry", "true" if helps else "false"),)
    if retry_after_s is not None:
        more += (("retry-after-ms", str(math.ceil(retry_after_s * 1000))),)
    return _with(
        error_answer(code, message, request_id, retry_after_s=retry_after_s, headers=headers), {"error": error}, more
    )


def rerank_error(
    code: str, message: str, request_id: str, *, retry_after_s: float | None = None, headers: Headers = ()
) -> HttpResponse:
    """Cohere's and Jina's form."""
    body = {"message": message, "detail": message, "code": code, "id": request_id}
    return _with(error_answer(code, message, request_id, retry_after_s=retry_after_s, headers=headers), body)


def tei_error(
    code: str, message: str, request_id: str, *, retry_after_s: float | None = None, headers: Headers = ()
) -> HttpResponse:
    """The form and the statuses of text-embeddings-inference."""
    status = STATUS_OF[code]
    status, kind = _TEI.get(code, (status, "validation" if status < 500 else "backend"))
    answer = error_answer(code, message, request_id, retry_after_s=retry_after_s, headers=headers)
    return _with(structs.replace(answer, status=status), {"error": message, "error_type": kind})


def kserve_error(
    code: str, message: str, request_id: str, *, retry_after_s: float | None = None, headers: Headers = ()
) -> HttpResponse:
    """The form of KServe's Open Inference Protocol: the text alone."""
    answer = error_answer(code, message, request_id, retry_after_s=retry_after_s, headers=headers)
    return _with(answer, {"error": message})


def _with(answer: HttpResponse, body: object, headers: Headers = ()) -> HttpResponse:
    return structs.replace(answer, body=_encode(body), headers=answer.headers + headers)
