"""Renders a WSGI application's response into bytes with an end that the client can find."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol

from config.native import hot_path
from webapp.http.errors import error_body

if TYPE_CHECKING:
    from types import TracebackType

    ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

logger = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_STATUS = re.compile(r"[2-5][0-9]{2} [\t -~]*")
_CACHE_MAX = 512
_WITHOUT_BODY = ("204", "304")
# Renders a whole response where nothing is special, as `Response` would; None where it was not compiled.
_response: Callable[..., bytes | None] | None = hot_path.response if hot_path is not None else None

# Added to every head as constants: browsers must not guess the content type, and nobody may cache JSON, which is about
# somebody or about this moment.
_SNIFFED = "\r\nX-Content-Type-Options: nosniff"
_END = f"{_SNIFFED}\r\n\r\n"
_END_OF_JSON = f"{_SNIFFED}\r\nCache-Control: no-store\r\n\r\n"

_PLAIN, _LENGTH, _CONNECTION, _DATE, _OURS, _TYPE = range(6)
_SPECIAL = {
    "content-type": _TYPE,
    "content-length": _LENGTH,
    "connection": _CONNECTION,
    "date": _DATE,
    # Hop-by-hop fields: PEP 3333 forbids them to applications, since framing is the server's.
    "transfer-encoding": _OURS,
    "keep-alive": _OURS,
    "upgrade": _OURS,
    "trailer": _OURS,
}
# Field name as the application spells it -> how to treat it. An application uses few.
_kinds: dict[str, int] = {}


def _kind_of(name: str) -> int:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"not a header name: {name!r}")
    kind = _SPECIAL.get(name.lower(), _PLAIN)
    if len(_kinds) < _CACHE_MAX:
        _kinds[name] = kind
    return kind


# Status as the application gives it -> as it is sent. An application uses few.
_statuses: dict[str, str] = {}


def _status_of(given: str) -> str:
    status = given + " " if len(given) == 3 else given
    if not _STATUS.fullmatch(status):
        raise ValueError(f"not a status: {given!r}")
    if len(_statuses) < _CACHE_MAX:
        _statuses[given] = status
    return status


class _Clock:
    """The value of the Date field, formatted once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def date(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True)
        return self._text


_clock = _Clock()


class Sink(Protocol):
    """The destination of a response."""

    def send(self, data: bytes) -> None:
        """Send at once. Raises `ClientGoneError`."""

    def send_last(self, data: bytes) -> None:
        """Send before the connection waits for more: the end of a response may leave together with the next one."""

    def must_close(self) -> bool:
        """True if the server wants to close this connection after this response."""


class Response:
    """One response: `start_response`, its `write`, and the rules of framing.

    `keep_alive` says afterwards whether the connection can carry another response.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_http11",
        "_is_head",
        "_left",
        "_sink",
        "complete",
        "headers",
        "keep_alive",
        "sent_bytes",
        "started",
        "status",
    )

    def __init__(self, sink: Sink, *, http11: bool, is_head: bool, keep_alive: bool) -> None:
        self._sink = sink
        self._http11 = http11
        self._is_head = is_head
        self.keep_alive = keep_alive
        self.status: str | None = None
        self.headers: Sequence[tuple[str, str]] = ()
        # Whether the head has been rendered: the status cannot change after that.
        self.started = False
        # Whether the client has received all of it, or is about to.
        self.complete = False
        self.sent_bytes = 0
        self._bodiless = False
        self._chunked = False
        # Body bytes still owed under a Content-Length; None when the end is marked otherwise.
        self._left: int | None = None

    def start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], None]:
        """PEP 3333's `start_response`. A second call needs `exc_info`, and raises it if the first head was sent."""
        if exc_info is not None:
            try:
                if self.started and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                # The traceback holds this frame: without this the cycle would outlive the request.
                exc_info = None
        elif self.status is not None:
            raise RuntimeError("start_response was called twice without exc_info")
        self.status = _statuses.get(status) or _status_of(status)
        self.headers = headers
        return self.write

    def write(self, data: bytes) -> None:
        """Send a part of the body; it is on its way when this returns."""
        if not data:
            return
        if self.started:
            self._send_part(b"", data)
        else:
            self._send_part(self._begin(None), data)

    def send_whole(self, body: bytes) -> None:
        """Send the rest of the body at once."""
        if self.started:
            self.write(body)
            self.finish()
            return
        if _response is not None and self._goes_plainly():
            whole = _response(self.status, self.headers, _kinds, _clock.date(), body)
            if whole is not None:
                self.started = self.complete = True
                self._left = 0
                self.sent_bytes = len(body)
                self._sink.send_last(whole)
                return
        head = self._begin(len(body))
        if self._left is not None and self._left != len(body) and not self._bodiless:
            self._send_part(head, body)
            self.finish()
            return
        self.complete = True
        if self._bodiless:
            self._sink.send_last(head)
        else:
            self.sent_bytes = len(body)
            self._sink.send_last(head + body)

    def _goes_plainly(self) -> bool:
        """True if a body with its length follows the head, and the connection goes on: the case of `hot_path`."""
        return (
            self._http11
            and self.keep_alive
            and not self._is_head
            and self.status is not None
            and not self.status.startswith(_WITHOUT_BODY)
            and not self._sink.must_close()
        )

    def finish(self) -> None:
        """End the response: the application has no more data."""
        if self.complete:
            return
        if not self.started:
            self.send_whole(b"")
            return
        self.complete = True
        if self._chunked:
            self._sink.send_last(b"0\r\n\r\n")
        elif self._left and not self._bodiless:
            # The client waits for bytes that will not come; only the end of the connection tells it.
            logger.error("the application sent %d bytes fewer than its Content-Length", self._left)
            self.keep_alive = False

    def _send_part(self, head: bytes, data: bytes) -> None:
        if self._bodiless:
            if head:
                self._sink.send(head)
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._left is not None:
            if len(data) > self._left:
                logger.error("the application sent %d bytes beyond its Content-Length", len(data) - self._left)
                data = data[: self._left]
            self._left -= len(data)
        self.sent_bytes += len(data)
        if self._left == 0:
            self.complete = True
            self._sink.send_last(head + data)
        else:
            self._sink.send(head + data)

    def _begin(self, whole: int | None) -> bytes:
        """Render the head; `whole` is the body's length if all of it is known. Raises `ValueError`, `TypeError`."""
        status = self.status
        if status is None:
            raise RuntimeError("the application sent a body without calling start_response")
        without_body = status.startswith(_WITHOUT_BODY)
        lines = ["HTTP/1.1 " + status]
        length, close, has_date, end = self._copy_headers(lines)
        if length is not None and (not without_body or status[:3] == "304"):
            lines.append(f"Content-Length: {length}")
        if not has_date:
            lines.append("Date: " + _clock.date())
        self._chunked = False
        if length is None and not without_body:
            # An empty body on HEAD says nothing about the body of GET.
            if whole is not None:
                length = whole
                if whole or not self._is_head:
                    lines.append(f"Content-Length: {whole}")
            elif self._http11:
                self._chunked = not self._is_head
                lines.append("Transfer-Encoding: chunked")
            else:
                close = close or not self._is_head
        if close or not self.keep_alive or self._sink.must_close():
            self.keep_alive = False
            lines.append("Connection: close")
        elif not self._http11:
            lines.append("Connection: keep-alive")
        head = _encode(lines, end)
        self._bodiless = without_body or self._is_head
        self._left = length
        self.started = True
        return head

    def _copy_headers(self, lines: list[str]) -> tuple[int | None, bool, bool, str]:
        """Append the application's fields but framing; returns Content-Length, if it closes, has a Date, and the
        end.
        """
        length: int | None = None
        close = has_date = False
        end = _END
        for name, value in self.headers:
            kind = _kinds.get(name)
            if kind is None:
                kind = _kind_of(name)
            if kind == _LENGTH:
                if not (value.isascii() and value.isdigit() and length in {None, int(value)}):
                    raise ValueError(f"not a Content-Length, or not the only one: {value!r}")
                length = int(value)
            elif kind == _CONNECTION:
                close = close or "close" in value.lower()
            elif kind != _OURS:
                if kind == _TYPE:
                    end = _END_OF_JSON if value == "application/json" else _END
                has_date = has_date or kind == _DATE
                lines.append(name + ": " + value)
        return length, close, has_date, end


def _encode(lines: list[str], end: str) -> bytes:
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    # A line end inside a value would let its author add headers, or a whole response.
    if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
        raise ValueError("a response header holds a line end or NUL")
    return (text + end).encode("latin-1")


def plain_response(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """Render a whole response to a GET or POST of HTTP/1.1 whose connection goes on; `headers` have its length."""
    whole = None if _response is None else _response(status, headers, _kinds, _clock.date(), body)
    if whole is None:
        held = _Held()
        response = Response(held, http11=True, is_head=False, keep_alive=True)
        response.start_response(status, headers)
        response.send_whole(body)
        whole = bytes(held)
    return whole


class _Held(bytearray):
    """A sink that keeps what it is given."""

    def send(self, data: bytes) -> None:
        self += data

    send_last = send

    def must_close(self) -> bool:
        return False


def error_response(
    status: str, code: str, message: str, request_id: str, *, keep_alive: bool, is_head: bool, retry_after_s: int = 0
) -> bytes:
    """Render a response of the server's own."""
    body = error_body(code, message, request_id, retry_after_s)
    later = f"Retry-After: {retry_after_s}\r\n" if retry_after_s else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Request-Id: {request_id}\r\nDate: {_clock.date()}\r\n{later}"
        f"Connection: {'keep-alive' if keep_alive else 'close'}{_END_OF_JSON}"
    )
    return head.encode("latin-1") + (b"" if is_head else body)
