"""`GET /v1/result/{task_id}` with `Accept: text/event-stream`: the request's states as events, its outcome as the last.

    status {"task_id", "status"}   at first, and when it has changed
    result                         what the same path answers without this header; then the stream ends

A stream that ends without `result` (the process stops, or an hour has passed) is continued by asking again, which
browsers do by themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import gevent
import msgspec

from tasks.errors import BackendUnavailable
from tasks.protocol.results import FINISHED, Reply
from webapp.errors import ApiError
from webapp.request import HttpRequest, HttpStream
from webapp.services import Services

_EVENTS = "text/event-stream; charset=utf-8"
_HEADERS = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
_MAX_STREAMS = 256
# One key leaves as many to others.
_MAX_STREAMS_OF_A_KEY = _MAX_STREAMS // 2
_LONGEST_S = 3600.0
# A start is seen within this time, an outcome at once.
_LOOK_S = 0.5
# Proxies close what is silent for a minute.
_SILENT_S = 15.0


def asked_for(call: HttpRequest) -> bool:
    return "text/event-stream" in (call.header("HTTP_ACCEPT") or "")


def follow(
    services: Services,
    call: HttpRequest,
    reply: Reply,
    state_of: Callable[[Reply], str],
    answer_of: Callable[[Reply], bytes],
) -> HttpStream:
    """Start a stream for a request in the state `reply`. `answer_of` makes the last event.

    Raises:
        ApiError: SERVICE_OVERLOADED, if too many are open in this process, or too many of this key.
    """
    key_id, followed = call.key_id, services.followed
    if followed.total() >= _MAX_STREAMS or (key_id and followed[key_id] >= _MAX_STREAMS_OF_A_KEY):
        why = "too many results are followed already in this process; ask with wait_ms"
        raise ApiError("SERVICE_OVERLOADED", why, retry_after_s=1.0)
    chunks = _counted(followed, key_id, _events(services, call, reply, state_of, answer_of))
    return HttpStream(200, b"", call.request_id, _EVENTS, _HEADERS, chunks)


def _counted(followed: Counter[str], key_id: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    followed[key_id] += 1
    try:
        yield from chunks
    finally:
        followed[key_id] -= 1
        if not followed[key_id]:
            del followed[key_id]


def _events(
    services: Services,
    call: HttpRequest,
    reply: Reply,
    state_of: Callable[[Reply], str],
    answer_of: Callable[[Reply], bytes],
) -> Iterator[bytes]:
    task_id, hung_up, stopping = reply.task_id, call.hung_up, call.shutting_down
    told, spoke_at, until = "", time.monotonic(), time.monotonic() + _LONGEST_S
    yield b"retry: 2000\n\n"
    while True:
        state, now = state_of(reply), time.monotonic()
        if state != told:
            yield _event("status", msgspec.json.encode({"task_id": task_id, "status": state}))
            told, spoke_at = state, now
        if reply.status in FINISHED:
            yield _event("result", answer_of(reply))
            return
        if stopping() or now > until or (hung_up is not None and hung_up()):
            return
        if now - spoke_at > _SILENT_S:
            yield b":\n\n"
            spoke_at = now
        try:
            found = services.client.result(task_id, _LOOK_S)
        except BackendUnavailable:
            gevent.sleep(_LOOK_S)
            continue
        if found is None:
            return
        reply = found


def _event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data.replace(b"\n", b"\ndata: "))
