"""Requests that are served in the event loop, without their connection's greenlet.

    readable ─▶ a whole request, with the head of the one before? ─yes─▶ ShortPath.take ─▶ Exchange ─▶ answer
                  │ no                                                     │ None            │ resume
                  └────────────────────────▶ the greenlet ◀────────────────┴─────────────────┘

Two switches of greenlets, an environ, a request and a response are more than half of a frontend's Python for a plain
request. This path serves what needs none of them: an answer that comes as everybody expects. Everything else, also a
request whose answer turns out to be an error, is served by the greenlet, which has the one set of rules for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from webapp.http.head import Template
from webapp.http.socket_io import Channel

if TYPE_CHECKING:
    from webapp.http.connections import Connections
    from webapp.http.limits import ServerLimits

logger = logging.getLogger(__name__)

RECV_BYTES = 16 * 1024


class Exchange(Protocol):
    """A request that is on the short path, until `LoopChannel.answer` or `LoopChannel.resume` is called."""

    def abandon(self) -> None:
        """Forget it: its connection has ended."""


class ShortPath(Protocol):
    """The short path of one connection, for requests with the head that it was made for."""

    def take(self, body: bytes, channel: LoopChannel) -> Exchange | None:
        """Begin to serve a request; None leaves it to the greenlet.

        Called in the hub: it must not wait, and `answer` or `resume` are called later.
        """


MakeShortPath = Callable[[dict[str, Any]], ShortPath | None]
"""Makes the short path for requests whose environ is this one but for the body; None: they have none."""


class AnsweredInPartError(Exception):
    """Raised in the waiting greenlet: the kernel has not taken the whole of an answer from the event loop."""


class LoopChannel(Channel):
    """A channel whose plain requests are served in the event loop, while its greenlet waits for the next request.

    `idle`: it waits between two requests, with nothing of the next one received.
    """

    __slots__ = ("_begun", "_exchange", "_request", "_service", "_short", "_template", "idle")

    def __init__(self, service: Connections, sock: Any, limits: ServerLimits) -> None:
        super().__init__(sock, limits)
        self._service = service
        self.idle = False
        # The head of the last request, and the short path of requests that begin with it.
        self._template: Template | None = None
        self._short: ShortPath | None = None
        # The request that is on it, and its bytes.
        self._exchange: Exchange | None = None
        self._request = b""
        # An exchange that the greenlet is to end.
        self._begun: Exchange | None = None

    def must_close(self) -> bool:
        """True while shutting down, once the requests that the client has already sent are answered."""
        return self._service.shutting_down and not self._buffer

    def _keep(self, template: Template | None) -> None:
        """Expect the next requests to have this head."""
        self._template, self._short = template, None
        make = self._service.short_path
        if make is not None and template is not None and template.goes_on and self._limits.idle_time_s > 0:
            self._short = make(template.environ)

    def _on_readable(self) -> None:
        short = self._short
        if short is None or not self.idle or not self._reads or self._service.shutting_down:
            super()._on_readable()
            return
        try:
            data = self._raw.recv(RECV_BYTES)
        except OSError:
            # The greenlet meets it again, or the socket was not readable after all.
            self._switch()
            return
        if not self._takes(data, short):
            self._received = data
            self._switch()

    def _takes(self, data: bytes, short: ShortPath) -> bool:
        body = None if self._template is None else self._template.body_of(data)
        # The greenlet refuses one that is too large.
        if body is None or len(body) > self._limits.body_bytes:
            return False
        try:
            exchange = short.take(body, self)
        except Exception:
            logger.exception("a request could not be taken in the event loop; its greenlet serves it")
            return False
        if exchange is None:
            return False
        # The greenlet goes on waiting, but nothing may end that now.
        self._exchange, self._request = exchange, data
        self._reads = self.idle = False
        self.deadline = math.inf
        return True

    def answer(self, data: bytes) -> None:
        """Send a whole response, and wait for the next request. Called in the hub."""
        self._exchange, self._request = None, b""
        self._service.count_request()
        self._expect()
        try:
            sent = self._raw.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            logger.debug("the client disconnected before its response: %r", error)
            self._received = b""
            self._switch()
            return
        if sent != len(data):
            self._unsent = data[sent:]
            self._greenlet.throw(AnsweredInPartError())

    def resume(self) -> None:
        """Let the greenlet end the request, from its beginning. Called in the hub."""
        self._begun, self._exchange = self._exchange, None
        self._received, self._request = self._request, b""
        self._expect()
        self._switch()

    def _expect(self) -> None:
        self._reads = self.idle = True
        self.deadline = time.monotonic() + self._limits.idle_time_s
        if not self._listens:
            self._listens = True
            self._reader.start(self._on_readable)

    def _close(self, *, linger: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()
        # Their environ holds a bound method of this object, a cycle that would keep a closed connection in memory.
        self._template = self._short = None
        super()._close(linger=linger)
