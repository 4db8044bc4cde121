"""The handlers of the operations page: none of them is hot, and one of them is an endless stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import msgspec
from redis.exceptions import RedisError

from tasks.observability.explain import explain, why_unknown
from webapp.errors import ApiError
from webapp.identity.client_address import ClientAddress
from webapp.ops import actions, origin_check
from webapp.ops.feed import EVERY_S, Feed
from webapp.parsing import read_body
from webapp.request import HttpRequest, HttpResponse, HttpStream
from webapp.services import Services
from webapp.static_files import StaticFiles, strict_headers

STATIC = Path(__file__).parent / "static"
_EVENTS = "text/event-stream; charset=utf-8"
_MAX_STREAMS = 32
# After this the browser reconnects, perhaps to a newer process.
_STREAM_S = 3600.0
_LOOK_S = 0.25
_HEADERS = strict_headers()
_FILES = StaticFiles({path.name: path for path in STATIC.iterdir()}, _HEADERS)
_action = msgspec.json.Decoder(actions.ActionBody)


def page(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /ops`."""
    return asset(services, call, name="page.html")


def asset(services: Services, call: HttpRequest, name: str) -> HttpResponse:
    """`GET /ops/static/<name>`."""
    return _FILES.answer(call, name)


def act(services: Services, call: HttpRequest, name: str) -> HttpResponse:
    """`POST /ops/actions/<name>`."""
    origin_check.refuse_other_sites(call)
    body = read_body(call, _action, services.large)
    try:
        done = actions.run(services, name, body, call.caller.key_id, ClientAddress(services.settings)(call))
    except RedisError as error:
        raise ApiError("BACKEND_UNAVAILABLE", f"Redis is not reachable: {error}") from error
    return HttpResponse(200, msgspec.json.encode(done), call.request_id)


def explained(services: Services, call: HttpRequest, name: str) -> HttpResponse:
    """`GET /ops/explain/<request id or task id>`: the result of `tasks.observability.explain`."""
    try:
        about = explain(services.places, services.settings.models, name)
        unknown = "" if about else why_unknown(services.redis, name)
    except RedisError as error:
        raise ApiError("BACKEND_UNAVAILABLE", f"Redis is not reachable: {error}") from error
    if unknown:
        raise ApiError("UNKNOWN_TASK", unknown)
    return HttpResponse(200, msgspec.json.encode(about), call.request_id, headers=_HEADERS)


def events(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /ops/events`: the state of the service, every two seconds."""
    services.events = services.events or Events(services)
    return services.events.open(call)


class Events:
    """The streams of one process."""

    def __init__(self, services: Services) -> None:
        self._feed = Feed(services)
        self._streams = 0

    def open(self, call: HttpRequest) -> HttpStream:
        """Start a stream. Raises ApiError."""
        if self._streams >= _MAX_STREAMS:
            raise ApiError("SERVICE_OVERLOADED", f"{_MAX_STREAMS} pages are open already in this process")
        headers = (*_HEADERS, ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return HttpStream(200, b"", call.request_id, _EVENTS, headers, self._stream(call.shutting_down))

    def _stream(self, stopping: Callable[[], bool]) -> Iterator[bytes]:
        self._streams += 1
        try:
            yield b"retry: 2000\n\n"
            greeted = False
            for _ in range(int(_STREAM_S / EVERY_S)):
                if not greeted:
                    greeted, event = self._greet()
                    yield event
                yield _event("now", self._feed.now())
                for _ in range(int(EVERY_S / _LOOK_S)):
                    gevent.sleep(_LOOK_S)
                    if stopping():
                        # Otherwise a stream would delay the stop of its process to the very end.
                        return
        finally:
            self._streams -= 1

    def _greet(self) -> tuple[bool, bytes]:
        try:
            return True, _event("hello", self._feed.hello())
        except RedisError:
            # `now` reports it.
            return False, b": no history\n\n"


def _event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
