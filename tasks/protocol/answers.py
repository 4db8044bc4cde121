"""A request's state and outcome as callers read it: by `GET /v1/result/{id}`, and when it is pushed."""

from __future__ import annotations

import msgspec

from tasks.errors import BY_CODE, BunchError, DeadlineExceeded, InferenceFailed, TaskCancelled
from tasks.protocol.results import Reply, decode_details, decode_error, model_metadata

_encode = msgspec.json.Encoder().encode

# Celery's states in the contract's words; RETRY and RECEIVED count as pending.
_STATES = {"SUCCESS": "SUCCESS", "FAILURE": "FAILURE", "REVOKED": "CANCELLED", "STARTED": "STARTED"}
COMPLETED = frozenset({"SUCCESS", "FAILURE"})


def error_of(reply: Reply) -> BunchError:
    """Map by code, never by the exception's class, which the reader may not have."""
    if reply.status == "REVOKED":
        return TaskCancelled("the request was cancelled")
    code = decode_details(reply.bunch).code
    text = decode_error(reply.result).text if bytes(reply.result) != b"null" else ""
    return BY_CODE.get(code, InferenceFailed)(text or "the model failed")


def checked(reply: object) -> Reply:
    """Return a successful reply, or raise the error that it stands for."""
    if isinstance(reply, Reply):
        if reply.status == "SUCCESS":
            return reply
        raise error_of(reply)
    if isinstance(reply, BunchError):
        raise reply
    raise DeadlineExceeded("the request was not answered before its deadline")


def state_of(reply: Reply) -> str:
    """PENDING, STARTED, SUCCESS, FAILURE or CANCELLED."""
    return _STATES.get(reply.status, "PENDING")


def answer_of(task_id: str, reply: Reply) -> bytes:
    """The state, and the outcome if there is one, as JSON."""
    state = state_of(reply)
    head = b'{"task_id":%b,"status":"%b"' % (_encode(task_id), state.encode())
    if state in COMPLETED and reply.date_done:
        head += b',"completed_at":' + _encode(reply.date_done)
    if state == "SUCCESS":
        return head + output_of(reply) + b"}"
    if state == "FAILURE":
        error = error_of(reply)
        return head + b',"error":%b,"message":%b}' % (_encode(error.code), _encode(error.message))
    return head + b"}"


def output_of(reply: Reply) -> bytes:
    """The members of an answer that has no place for all of the metadata: the output, and what the model adds to it."""
    metadata = model_metadata(reply.bunch)
    return b',"output":' + bytes(reply.result) + (b',"metadata":' + metadata if metadata else b"")
