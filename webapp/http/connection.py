"""One client's connection: read a request, run the application, send its response, again."""

from __future__ import annotations

import contextlib
import logging
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any

import gevent

from webapp.http.channel import Channel
from webapp.http.chunked import ChunkedBody
from webapp.http.errors import (
    BodyTooLargeError,
    ClientGoneError,
    InvalidRequestError,
    RequestRefusedError,
    RequestTimeoutError,
    WaitExpiredError,
    request_id_from,
    request_id_from_raw,
)
from webapp.http.head import Head, Template, check_beginning
from webapp.http.response import CONTINUE, Response, error_response

if TYPE_CHECKING:
    from webapp.http.service import HttpService

logger = logging.getLogger(__name__)

_RECV_BYTES = 16 * 1024
_RECV_BODY_BYTES = 64 * 1024


class Connection(Channel):
    """Serves one request after the other, in a greenlet of its own."""

    __slots__ = ("_base", "_service", "_template", "_templates_left", "_used", "idle")

    def __init__(self, service: HttpService, sock: Any, base_environ: dict[str, Any]) -> None:
        super().__init__(sock, service.limits)
        self._service = service
        # What the environs of its requests share.
        self._base = base_environ
        base_environ["gunicorn.socket"] = sock
        base_environ["bunch.disconnected"] = self.disconnected
        self._template: Template | None = None
        self._templates_left = 3
        # Whether it has carried a request.
        self._used = False
        # Waiting between two requests, with nothing of the next one received.
        self.idle = False

    def run(self) -> None:
        linger = False
        raw = b""
        try:
            while True:
                raw = b""
                received = self._read_head()
                if received is None:
                    return
                raw = received
                head = self._head_of(raw)
                environ = head.environ
                if head.chunked:
                    body = self._read_chunked(head)
                    # RFC 9112 7.1.3: decoded, a chunked body is one of known length.
                    environ["CONTENT_LENGTH"] = str(len(body))
                elif head.content_length:
                    body = self._read_sized(head)
                else:
                    body = b""
                environ["wsgi.input"] = BytesIO(body)
                if not self._respond(head):
                    linger = True
                    return
        except RequestRefusedError as refused:
            linger = True
            self._refuse(refused, raw or self._buffer)
        except (ClientGoneError, WaitExpiredError, OSError) as error:
            logger.debug("connection ended: %r", error)
        finally:
            self._close(linger=linger)

    def _head_of(self, raw: bytes) -> Head:
        """Raises `RequestRefusedError`."""
        head = None if self._template is None else self._template.read(raw)
        if head is None:
            head = Head(raw, self._base, self._limits)
            # Not of a connection's only request, and no more for a client whose heads differ each time.
            if self._used and self._templates_left:
                self._templates_left -= 1
                self._template = Template.of(head, raw, self._limits)
        return head

    def _read_head(self) -> bytes | None:
        """The next request's head; None when client or deadline ended the connection between two requests."""
        data = self._buffer
        if not data:
            data = self._wait_for_request()
            if not data:
                return None
        end = data.find(b"\r\n\r\n")
        if end < 0 or data[0] <= 13:
            data = self._read_rest_of_head(data)
            if not data:
                return None
            end = data.find(b"\r\n\r\n")
        end += 4
        if end == len(data):
            self._buffer = b""
            return data
        self._buffer = data[end:]
        return data[:end]

    def _wait_for_request(self) -> bytes:
        now = time.monotonic()
        deadline = now + (self._limits.idle_time_s if self._used else self._limits.header_time_s)
        if self._service.shutting_down:
            deadline = min(deadline, now + self._limits.drain_idle_s)
        self.idle = True
        try:
            return self._receive(_RECV_BYTES, deadline)
        except WaitExpiredError:
            # A request may have come in the meantime: it must not be met by a reset.
            with contextlib.suppress(OSError):
                return self._raw.recv(_RECV_BYTES)  # type: ignore[no-any-return]
            return b""
        except OSError:
            # Idle clients vanish in all sorts of ways.
            return b""
        finally:
            self.idle = False

    def _read_rest_of_head(self, data: bytes) -> bytes:
        """From a beginning to at least a whole head; empty when nothing but blank lines came."""
        limits = self._limits
        deadline = time.monotonic() + limits.header_time_s
        blank_lines = 0
        searched = 0
        while True:
            # RFC 9112 2.2: a few clients put a blank line behind a body.
            while data.startswith(b"\r\n"):
                data = data[2:]
                blank_lines += 1
                if blank_lines > 4:
                    raise InvalidRequestError("A request begins with its request line, not with blank lines.")
            self._buffer = data
            if data and data != b"\r":
                if data.find(b"\r\n\r\n", searched) >= 0:
                    return data
                check_beginning(data, limits)
                searched = max(0, len(data) - 3)
            try:
                more = self._receive(_RECV_BYTES, deadline)
            except WaitExpiredError:
                if not data:
                    return b""
                raise RequestTimeoutError(
                    f"The request's head did not arrive within {limits.header_time_s:g} s."
                ) from None
            if not more:
                if not data:
                    return b""
                raise InvalidRequestError("The connection ended inside the request's head.")
            data += more

    def _read_sized(self, head: Head) -> bytes:
        length = head.content_length
        if length > self._limits.body_bytes:
            raise BodyTooLargeError(f"The body is larger than {self._limits.body_bytes} bytes.")
        data = self._buffer
        if len(data) >= length:
            self._buffer = data[length:]
            return data[:length]
        self._buffer = b""
        if head.expects_continue and not data:
            self.send(CONTINUE)
        parts = [data]
        missing = length - len(data)
        deadline = time.monotonic() + self._limits.body_time_s
        while missing:
            data = self._receive_body(min(missing, _RECV_BODY_BYTES), deadline)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _read_chunked(self, head: Head) -> bytes:
        decoder = ChunkedBody(self._limits)
        data, self._buffer = self._buffer, b""
        if head.expects_continue and not data:
            self.send(CONTINUE)
        deadline = time.monotonic() + self._limits.body_time_s
        while True:
            rest = decoder.feed(data)
            if rest is not None:
                self._buffer = rest
                return decoder.body
            data = self._receive_body(_RECV_BODY_BYTES, deadline)

    def _receive_body(self, size: int, deadline: float) -> bytes:
        try:
            data = self._receive(size, deadline)
        except WaitExpiredError:
            limit = self._limits.body_time_s
            raise RequestTimeoutError(f"The body did not arrive within {limit:g} s.") from None
        if not data:
            raise InvalidRequestError("The connection ended inside the request's body.")
        return data

    def _respond(self, head: Head) -> bool:
        """Run the application; whether the connection goes on."""
        service = self._service
        self._used = True
        service.count_request()
        environ = head.environ
        keep_alive = head.keep_alive and self._limits.idle_time_s > 0
        response = Response(self, http11=head.http11, is_head=head.is_head, keep_alive=keep_alive)
        started_at = time.monotonic() if service.access is not None else 0.0
        try:
            self._run_app(environ, response)
        except ClientGoneError:
            logger.debug("the client went away during its response")
            response.keep_alive = False
        # gevent's Timeout is no Exception; one that leaks from the application is its error all the same.
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001
            self._fail(error, response, head)
        if service.access is not None:
            service.access(environ, response, time.monotonic() - started_at)
        return response.keep_alive

    def _run_app(self, environ: dict[str, Any], response: Response) -> None:
        result = self._service.app(environ, response.start_response)
        try:
            if type(result) is list or type(result) is tuple:
                response.send_whole(result[0] if len(result) == 1 else b"".join(result))
            else:
                for part in result:
                    response.write(part)
                response.finish()
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()

    def _fail(self, error: BaseException, response: Response, head: Head) -> None:
        path = head.environ["PATH_INFO"]
        request_id = request_id_from(head.environ.get("HTTP_X_REQUEST_ID"))
        extra = {"request_id": request_id}
        logger.error("the application failed at %s, request id %s", path, request_id, exc_info=error, extra=extra)
        if response.complete:
            return
        if response.started:
            # Half a response is out: only a broken connection tells the client that it is not the whole.
            response.keep_alive = False
            return
        if self.must_close():
            response.keep_alive = False
        response.status = "500 Internal Server Error"
        message = "The server failed at this request; it is logged under the request id."
        answer = error_response(
            response.status, "INTERNAL", message, request_id, keep_alive=response.keep_alive, is_head=head.is_head
        )
        try:
            self.send_last(answer)
        except ClientGoneError:
            response.keep_alive = False

    def _refuse(self, refused: RequestRefusedError, raw: bytes) -> None:
        request_id = request_id_from_raw(raw)
        client = self._base["REMOTE_ADDR"]
        logger.info("refused a request from %s: %s (%s)", client, refused.message, request_id)
        is_head = raw.startswith(b"HEAD ")
        error = error_response(
            refused.status, refused.code, refused.message, request_id, keep_alive=False, is_head=is_head
        )
        with contextlib.suppress(ClientGoneError):
            self.send(error)

    def must_close(self) -> bool:
        """Shutting down; but what the client has already sent behind this request is answered first."""
        return self._service.shutting_down and not self._buffer

    def _close(self, *, linger: bool) -> None:
        try:
            super()._close(linger=linger)
        finally:
            # It holds a method of ours: without this a closed connection would wait for the cycle collector.
            self._base.clear()
            self._service.closed(self)
