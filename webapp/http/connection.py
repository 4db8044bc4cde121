"""One client's connection: read a request, run the application, send its response, repeat."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any

import gevent

from webapp.http.chunked import ChunkedBody
from webapp.http.errors import (
    BodyTooLargeError,
    ClientGoneError,
    CrowdedOutError,
    InvalidRequestError,
    RequestRefusedError,
    RequestTimeoutError,
    WaitExpiredError,
    request_id_from,
    request_id_from_raw,
)
from webapp.http.head import Head, Template, check_beginning
from webapp.http.intake import CROWDED_OUT
from webapp.http.response import CONTINUE, Response, error_response
from webapp.http.short_path import RECV_BYTES, AnsweredInPartError, LoopChannel
from webapp.http.sized import SizedBody

if TYPE_CHECKING:
    from webapp.http.connections import Connections

logger = logging.getLogger(__name__)

_RECV_BODY_BYTES = 64 * 1024
_RECV_IN_PLACE_BYTES = 1024 * 1024


class Connection(LoopChannel):
    """Serves requests one after the other, in a greenlet of its own."""

    __slots__ = (
        "_base",
        "_crowded",
        "_evicted",
        "_templates_left",
        "_used",
        "lingers",
    )

    def __init__(self, service: Connections, sock: Any, base_environ: dict[str, Any]) -> None:
        super().__init__(service, sock, service.limits)
        # The part of the environ that all its requests share.
        self._base = base_environ
        base_environ["gunicorn.socket"] = sock
        base_environ["bunch.disconnected"] = self.disconnected
        self._templates_left = 3
        # Whether it has carried a request.
        self._used = False
        # Reading and discarding after its last response, until the client has received that.
        self.lingers = False
        # Its request must give way to others, or its place to a new client.
        self._crowded = self._evicted = False

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
                body = b""
                if head.chunked or head.content_length:
                    whole = self._read_body(head)
                    if whole is None:
                        linger = True
                        return
                    body = whole
                    if head.chunked:
                        # RFC 9112 7.1.3: once decoded, a chunked body has a known length.
                        environ["CONTENT_LENGTH"] = str(len(body))
                environ["wsgi.input"] = BytesIO(body)
                if self._begun is not None:
                    environ["bunch.begun"], self._begun = self._begun, None
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
        """Parse a head. Raises `RequestRefusedError`."""
        head = None if self._template is None else self._template.read(raw)
        if head is None:
            head = Head(raw, self._base, self._limits)
            # No template for a connection's only request, and no more for a client whose heads differ each time.
            if self._used and self._templates_left:
                self._templates_left -= 1
                self._keep(Template.of(head, raw, self._limits))
        return head

    def _read_head(self) -> bytes | None:
        """The next request's head; None when the client or a deadline ended the connection between two requests."""
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
        while True:
            try:
                return self._receive_request()
            except AnsweredInPartError:
                # The rest is sent before the next request is received.
                continue

    def _receive_request(self) -> bytes:
        # Not idle until the last answer has left: a shutdown, which leaves idle ones a moment, would cut it short.
        if self._unsent:
            self._flush()
        now = time.monotonic()
        deadline = now + (self._limits.idle_time_s if self._used else self._limits.header_time_s)
        if self._service.shutting_down:
            deadline = min(deadline, now + self._limits.drain_idle_s)
        self.idle = True
        try:
            return self._receive(RECV_BYTES, deadline)
        except WaitExpiredError:
            # A request may have arrived in the meantime: it must not be answered with a reset.
            with contextlib.suppress(OSError):
                return self._raw.recv(RECV_BYTES)  # type: ignore[no-any-return]
            return b""
        except OSError:
            # Idle clients vanish in various ways.
            return b""
        finally:
            self.idle = False

    def _read_rest_of_head(self, data: bytes) -> bytes:
        """Receive the rest of a head; returns at least a whole head, or nothing when only blank lines came."""
        try:
            return self._gather_head(data)
        finally:
            self._service.intake.release(self)

    def _gather_head(self, data: bytes) -> bytes:
        limits = self._limits
        deadline = time.monotonic() + limits.header_time_s
        blank_lines = 0
        searched = 0
        while True:
            # RFC 9112 2.2: a few clients send a blank line after a body.
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
            self._service.intake.hold(self, len(data))
            try:
                more = self._receive_more(RECV_BYTES, deadline)
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

    def _receive_more(self, size: int, deadline: float) -> bytes:
        """Receive more of a request that has begun. Raises `CrowdedOutError`, and what `_receive` raises."""
        data = self._receive(size, deadline)
        self._require_room()
        return data

    def _require_room(self) -> None:
        if self._crowded:
            raise CrowdedOutError(CROWDED_OUT)

    def _read_body(self, head: Head) -> bytes | None:
        """The whole body; None if the application has answered without it."""
        arriving: SizedBody | ChunkedBody
        data = self._buffer
        if head.chunked:
            arriving = ChunkedBody(self._body_limit(head))
        else:
            length = head.content_length
            if length > self._limits.body_bytes and length > (limit := self._body_limit(head)):
                raise BodyTooLargeError(f"The body is larger than {limit} bytes.")
            if len(data) >= length:
                self._buffer = data[length:]
                return data[:length]
            arriving = SizedBody(length)
        self._buffer = b""
        rest = arriving.feed(data)
        if rest is None:
            # What came with the head is here already; before more is received, the application is asked.
            if not self._is_welcome(head):
                return None
            if head.expects_continue and not data:
                self.send(CONTINUE)
            rest = self._receive_rest(arriving)
        self._buffer = rest
        return arriving.body

    def _body_limit(self, head: Head) -> int:
        body_limit = self._service.body_limit
        return self._limits.body_bytes if body_limit is None else body_limit(head.environ)

    def _is_welcome(self, head: Head) -> bool:
        before_body = self._service.before_body
        if before_body is None:
            return True
        response = Response(self, http11=head.http11, is_head=head.is_head, keep_alive=False)
        return not self._answered(head, response, before_body)

    def _receive_rest(self, arriving: SizedBody | ChunkedBody) -> bytes:
        intake, deadline = self._service.intake, time.monotonic() + self._limits.body_time_s
        try:
            while True:
                intake.hold(self, arriving.held_bytes, in_place=arriving.in_place)
                rest = self._receive_body(arriving, deadline)
                if rest is not None:
                    return rest
        finally:
            intake.release(self)

    def _receive_body(self, arriving: SizedBody | ChunkedBody, deadline: float) -> bytes | None:
        """Receive some of a body; returns what its `feed` returns."""
        room, data = arriving.room(_RECV_IN_PLACE_BYTES), b""
        try:
            if room is None:
                data = self._receive_more(min(arriving.missing, _RECV_BODY_BYTES), deadline)
                size = len(data)
            else:
                size = self._receive_into(room, deadline)
                self._require_room()
        except WaitExpiredError:
            raise RequestTimeoutError(f"The body did not arrive within {self._limits.body_time_s:g} s.") from None
        if not size:
            raise InvalidRequestError("The connection ended inside the request's body.")
        return arriving.feed(data) if room is None else arriving.filled(size)

    def _respond(self, head: Head) -> bool:
        """Run the application; returns whether the connection goes on."""
        service = self._service
        self._used = True
        service.count_request()
        keep_alive = head.keep_alive and self._limits.idle_time_s > 0
        response = Response(self, http11=head.http11, is_head=head.is_head, keep_alive=keep_alive)
        self._answered(head, response, service.app)
        return response.keep_alive

    def _answered(self, head: Head, response: Response, app: Callable[..., Iterable[bytes] | None]) -> bool:
        """Run `app` and send its response; returns whether it gave one."""
        service = self._service
        environ = head.environ
        started_at = time.monotonic() if service.access is not None else 0.0
        try:
            if not self._run_app(app, environ, response):
                return False
        except ClientGoneError:
            logger.debug("the client disconnected during its response")
            response.keep_alive = False
        # gevent's Timeout is no Exception; one that leaks from the application is still its error.
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001
            self._fail(error, response, head)
        if service.access is not None:
            service.access(environ, response, time.monotonic() - started_at)
        return True

    def _run_app(self, app: Callable[..., Iterable[bytes] | None], environ: dict[str, Any], response: Response) -> bool:
        result = app(environ, response.start_response)
        if result is None:
            return False
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
        return True

    def _fail(self, error: BaseException, response: Response, head: Head) -> None:
        path = head.environ["PATH_INFO"]
        request_id = request_id_from(head.environ.get("HTTP_X_REQUEST_ID"))
        extra = {"request_id": request_id}
        logger.error("the application failed at %s, request id %s", path, request_id, exc_info=error, extra=extra)
        if response.complete:
            return
        if response.started:
            # Half a response was sent: only a broken connection tells the client that it is incomplete.
            response.keep_alive = False
            return
        if self.must_close():
            response.keep_alive = False
        response.status = "500 Internal Server Error"
        message = "The server failed to answer this request; its log has the error under the request id."
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
            refused.status,
            refused.code,
            refused.message,
            request_id,
            keep_alive=False,
            is_head=is_head,
            retry_after_s=refused.retry_after_s,
        )
        with contextlib.suppress(ClientGoneError):
            self.send(error)

    def crowd_out(self) -> None:
        self._crowded = True
        self._hub.loop.run_callback(self._give_way)

    def _give_way(self) -> None:
        # A greenlet that does not wait finds out at its next receive; one that has found out is lingering already.
        if self._reads and not self.lingers:
            self._greenlet.throw(CrowdedOutError(CROWDED_OUT))

    @property
    def dispensable(self) -> tuple[int, float] | None:
        """The order in which connections are closed to make room, for `min`; None while the client waits for an answer.

        Connections without a request come before those whose request has begun to arrive; within each kind the
        one whose deadline is first, which has waited longest.
        """
        if not self._reads:
            return None
        return (0 if self.lingers else 1 if self.idle else 2, self.deadline)

    def evict(self) -> None:
        """Close it to free its place; called in the hub."""
        self._evicted = True
        if self.idle or self.lingers:
            self.expire()
        else:
            self._greenlet.throw(
                CrowdedOutError("The server closed this connection to make room for others; try again.")
            )

    def _close(self, *, linger: bool) -> None:
        self.lingers = linger
        try:
            super()._close(linger=linger and not self._evicted)
        finally:
            # It holds a bound method of this object, a cycle that would keep a closed connection in memory.
            self._base.clear()
            self._service.closed(self)
