"""HTTP requests and responses as every handler sees them: without Flask, so that the fast lane and the Flask views run
the same code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from tasks.client.pending import Pending
from tasks.errors import InvalidInput
from tasks.protocol.caller import Caller
from tasks.protocol.ids import new_id
from tasks.protocol.traceparent import valid, valid_state
from webapp.body_budget import Turn
from webapp.http.certificate import CERTIFICATE, ClientCertificate
from webapp.http.forwarded import NOTED, was_forwarded

JSON = "application/json"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

STATUS_LINES: dict[int, str] = {
    200: "200 OK",
    202: "202 Accepted",
    304: "304 Not Modified",
    400: "400 Bad Request",
    401: "401 Unauthorized",
    403: "403 Forbidden",
    404: "404 Not Found",
    405: "405 Method Not Allowed",
    409: "409 Conflict",
    413: "413 Content Too Large",
    415: "415 Unsupported Media Type",
    422: "422 Unprocessable Content",
    424: "424 Failed Dependency",
    429: "429 Too Many Requests",
    499: "499 Client Closed Request",
    500: "500 Internal Server Error",
    503: "503 Service Unavailable",
    504: "504 Gateway Timeout",
}


class HttpResponse(msgspec.Struct, frozen=True):
    """`headers` are added to Content-Type, Content-Length, X-Request-Id and the fields that the server adds to all."""

    status: int
    body: bytes
    request_id: str
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    def header_list(self) -> list[tuple[str, str]]:
        return [
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("X-Request-Id", self.request_id),
            *self.headers,
        ]


class HttpStream(HttpResponse, frozen=True):
    """A response that is sent piece by piece, through Flask; `body` is empty."""

    chunks: Iterable[bytes] = ()

    def header_list(self) -> list[tuple[str, str]]:
        return [("Content-Type", self.content_type), ("X-Request-Id", self.request_id), *self.headers]


class Begun(Protocol):
    """A call's request that is in the queue, or has ended. `started`: the call's begin, as `perf_counter` tells it."""

    pending: Pending
    started: float

    @property
    def model(self) -> str:
        """The model that has it."""


class HttpRequest:
    """One HTTP request over its WSGI environment.

    `caller` is set once the caller is identified, `client_id` once a body was read that names the caller's client.
    `large_body` is the body if it is a large one, and `turn` its turn: that ends when its request is in the outbox, and
    is left when the handler returns.
    """

    __slots__ = ("_environ", "_request_id", "caller", "caller_request_id", "client_id", "large_body", "turn")

    caller: Caller

    def __init__(self, environ: dict[str, Any]) -> None:
        self._environ = environ
        given = environ.get("HTTP_X_REQUEST_ID")
        # An id that is not safe in a log line or a header is replaced, not refused.
        self.caller_request_id = given if given and _REQUEST_ID.fullmatch(given) else ""
        self._request_id = self.caller_request_id
        self.client_id = ""
        self.large_body = b""
        self.turn: Turn | None = None

    def again(self) -> HttpRequest:
        """Another call with the same head."""
        return HttpRequest(self._environ)

    @property
    def request_id(self) -> str:
        """The caller's id, or the id of the task that this call became, or a new one."""
        if not self._request_id:
            self._request_id = new_id()
        return self._request_id

    def became(self, task_id: str) -> None:
        """Use the task's id as the request id, if the caller gave none: one id then finds both."""
        if not self._request_id:
            self._request_id = task_id

    def header(self, name: str) -> str | None:
        """A header by its WSGI name, such as `HTTP_X_TIMEOUT_MS`."""
        value: str | None = self._environ.get(name)
        return value

    @property
    def method(self) -> str:
        method: str = self._environ["REQUEST_METHOD"]
        return method

    @property
    def scheme(self) -> str:
        scheme: str = self._environ["wsgi.url_scheme"]
        return scheme

    @property
    def path(self) -> str:
        path: str = self._environ["PATH_INFO"]
        return path

    @property
    def route(self) -> str:
        """The path's pattern, so that span names contain no ids; the path itself on the fast lane, which has none."""
        rule = getattr(self._environ.get("werkzeug.request"), "url_rule", None)
        return str(rule) if rule else self.path

    @property
    def traceparent(self) -> str:
        """The trace context to pass on: of our own span if there is one, else the caller's; may be empty."""
        ours: str | None = self._environ.get("bunch.traceparent")
        return valid(self._environ.get("HTTP_TRACEPARENT")) if ours is None else ours

    @property
    def tracestate(self) -> str:
        """The vendors' part of the caller's trace context; empty without a trace."""
        given = self._environ.get("HTTP_TRACESTATE")
        return valid_state(given) if given and valid(self._environ.get("HTTP_TRACEPARENT")) else ""

    def asked_for(self, model: str) -> None:
        """Note the name under which a model was asked for that has several versions."""
        self._environ["bunch.asked_for"] = model

    @property
    def asked_model(self) -> str:
        """That name; empty where the model that answers follows from the configuration alone."""
        name: str = self._environ.get("bunch.asked_for", "")
        return name

    def trace_with(self, span: Any, traceparent: str) -> None:
        self._environ["bunch.span"] = span
        self._environ["bunch.traceparent"] = traceparent

    @property
    def span(self) -> Any:
        """OpenTelemetry's span of this request; None unless it is sampled."""
        return self._environ.get("bunch.span")

    @property
    def was_forwarded(self) -> bool:
        """True if a proxy has passed the request on."""
        # Our server notes it in the environ; an environ of another server is checked here.
        noted: str | None = self._environ.get(NOTED)
        return was_forwarded(self._environ) if noted is None else noted == "1"

    @property
    def begun(self) -> Begun | None:
        """The request that the event loop has submitted for this call, whose end is this call's; else None."""
        begun: Begun | None = self._environ.get("bunch.begun")
        return begun

    @property
    def certificate(self) -> ClientCertificate | None:
        """The client's certificate, which the TLS handshake has verified; None without one."""
        found: ClientCertificate | None = self._environ.get(CERTIFICATE)
        return found

    @property
    def key_id(self) -> str:
        """The caller's key; empty for one without a key, or before it is identified."""
        caller: Caller | None = getattr(self, "caller", None)
        return caller.key_id if caller is not None else ""

    @property
    def hung_up(self) -> Callable[[], bool] | None:
        """A function that tells whether the client has disconnected; the server's, see `webapp.server`."""
        ask: Callable[[], bool] | None = self._environ.get("bunch.disconnected")
        return ask

    @property
    def shutting_down(self) -> Callable[[], bool]:
        """A function that says whether the process was told to stop; set by `webapp.server`."""
        ask: Callable[[], bool] = self._environ.get("bunch.shutting_down", lambda: False)
        return ask

    @property
    def body_bytes(self) -> int:
        """The length of the body, or the length that was announced; once unpacked, its plain length."""
        return int(self._environ.get("bunch.unpacked_bytes") or self._environ.get("CONTENT_LENGTH") or 0)

    def unpacked(self, size: int) -> None:
        """Note that the body has this many bytes when decompressed: it costs as much as if it had come so."""
        self._environ["bunch.unpacked_bytes"] = size

    def body(self) -> bytes:
        length = self._environ.get("CONTENT_LENGTH")
        stream = self._environ["wsgi.input"]
        body: bytes = stream.read(int(length)) if length else stream.read()
        return body

    def query(self, name: str) -> str | None:
        """A member of the query. Raises InvalidInput, if it is there twice, or the query is not UTF-8."""
        text = self._environ.get("QUERY_STRING", "")
        try:
            values: list[str] | None = (
                parse_qs(text, keep_blank_values=True, errors="strict").get(name) if text else None
            )
        except UnicodeDecodeError as error:
            raise InvalidInput(f"the query is not UTF-8: {error}") from None
        if values is None:
            return None
        if len(values) > 1:
            # The last would win here, and the first elsewhere, for example in a proxy that looks at the model.
            raise InvalidInput(f"{name}: it is twice in the query")
        return values[0]
