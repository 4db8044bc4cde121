"""`/v1/result/{task_id}` and `/internal/requests/{id}`: the state and outcome of one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from redis.exceptions import RedisError

from tasks.errors import BackendUnavailable
from tasks.observability.explain import explain_recorded
from tasks.protocol.answers import COMPLETED, answer_of, error_of, state_of
from tasks.protocol.ids import belongs_to
from tasks.protocol.results import FINISHED, Reply, decode_details
from webapp.api import result_events
from webapp.binary_answers import binary_answer, wish_in
from webapp.errors import ApiError
from webapp.parsing import flag, milliseconds
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_encode = msgspec.json.Encoder().encode

_ABOUT_ITS_INPUT = frozenset({"INPUT_REJECTED", "INVALID_INPUT"})
_LIFE = {"SUCCESS": "completed", "FAILURE": "failed", "CANCELLED": "failed", "STARTED": "processing"}


def get_result(services: Services, call: HttpRequest, task_id: str) -> HttpResponse:
    """Return the state and outcome, after waiting up to `wait_ms` for the request to finish.

    With `Accept: text/event-stream` the states are events, and the outcome the last of them. With `forget=true` an
    outcome is deleted once it is returned, instead of being kept until it expires.
    """
    _require_owner(call, task_id)
    forgets = flag(call.query("forget"), "forget")
    wait = call.query("wait_ms")
    wait_s = milliseconds(wait, "wait_ms", "INVALID_INPUT") / 1000 if wait is not None else 0.0
    follows, wish = result_events.asked_for(call), wish_in(call)
    wait_s = 0.0 if follows else min(wait_s, services.settings.request_timeout_s)
    reply = services.client.result(task_id, wait_s, as_bytes=bool(wish.types) and not follows)
    if reply is None:
        raise _unknown(task_id)

    def answer(reply: Reply) -> bytes:
        if forgets and reply.status in FINISHED:
            services.client.forget(task_id)
        return answer_of(task_id, reply.in_json())

    if follows:
        return result_events.follow(services, call, reply, state_of, answer)
    if wish.types and state_of(reply) == "SUCCESS":
        about = {"task_id": task_id, "completed_at": reply.date_done}
        binary = binary_answer(call, wish, reply, about)
        if binary is not None:
            if forgets:
                services.client.forget(task_id)
            return binary
    return HttpResponse(200, answer(reply), call.request_id)


def cancel_result(services: Services, call: HttpRequest, task_id: str) -> HttpResponse:
    """Cancel a request that has not started; doing so twice is no error."""
    _require_owner(call, task_id)
    found = services.client.cancel(task_id)
    if not found:
        raise _unknown(task_id)
    if found in {"PENDING", "REVOKED"}:
        return HttpResponse(200, b'{"task_id":%b,"status":"CANCELLED"}' % _encode(task_id), call.request_id)
    if found == "STARTED":
        raise ApiError("ALREADY_FINISHED", "the request is already running and can no longer be cancelled")
    raise ApiError("ALREADY_FINISHED", "the request has already finished")


def get_request(services: Services, call: HttpRequest, request_id: str) -> HttpResponse:
    """The stages of one request, by its request id or task id."""
    owner = call.caller.owner
    task_id = services.client.task_of(request_id, owner)
    reply = services.client.result(task_id) if belongs_to(task_id, owner) else None
    if reply is not None:
        return HttpResponse(200, _encode(_described(request_id, task_id, reply)), call.request_id)
    try:
        about = explain_recorded(services.redis, request_id, owner)
    except RedisError as error:
        raise BackendUnavailable("the batch log is not reachable; try again shortly") from error
    if about is None:
        raise _unknown(request_id)
    return HttpResponse(200, _encode(_remembered(about)), call.request_id)


def _described(request_id: str, task_id: str, reply: Reply) -> dict[str, object]:
    state = state_of(reply)
    details = decode_details(reply.bunch)
    finished = state in {"SUCCESS", "FAILURE", "CANCELLED"}
    error = error_of(reply) if finished and state != "SUCCESS" else None
    return {
        "request_id": request_id,
        "task_id": task_id,
        "status": _LIFE.get(state, "queued"),
        "latency_ms": round(details.queue_ms + details.compute_ms, 3) if finished else None,
        "queue_ms": details.queue_ms if finished else None,
        "compute_ms": details.compute_ms if finished else None,
        "batch_id": details.batch_id or None,
        "batch_size": details.batch_size or None,
        "tier": details.tier or None,
        "attempt": details.attempt,
        "completed_at": reply.date_done if state in COMPLETED else None,
        "error": {"error": error.code, "message": error.message} if error else None,
    }


def _remembered(about: Mapping[str, Any]) -> dict[str, object]:
    """The state from the batch log, when the result has expired."""
    took = {each["stage"]: each["ms"] for each in about["stages"]}
    batch, error = about["batch"] or {}, about["error"]
    return {
        "request_id": about["request_id"],
        "task_id": about["task_id"],
        "status": "completed" if about["status"] == "completed" else "failed",
        "latency_ms": round((took.get("queue") or 0.0) + (took.get("compute") or 0.0), 3) if took else None,
        "queue_ms": took.get("queue"),
        "compute_ms": took.get("compute"),
        "batch_id": batch.get("id"),
        "batch_size": batch.get("size"),
        "tier": about["tier"],
        "attempt": about["attempt"],
        "error": {"error": error["code"], "message": _told(error, about["where"])} if error else None,
    }


def _told(error: Mapping[str, Any], where: str | None) -> str:
    """The reason that a caller may read: the model's words about this input, or ours, but not a whole batch's."""
    if error["code"] in _ABOUT_ITS_INPUT:
        return error["message"] or ""
    return where or "the model failed"


def _require_owner(call: HttpRequest, task_id: str) -> None:
    """Answer for another owner's request as for an unknown one."""
    if not belongs_to(task_id, call.caller.owner):
        raise _unknown(task_id)


def _unknown(task_id: str) -> ApiError:
    return ApiError("UNKNOWN_TASK", f"no request {task_id[:64]!r}: never issued, or its result has expired")
