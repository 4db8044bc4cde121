"""All connections of one worker: their shared state, the reaper, and the shutdown."""

from __future__ import annotations

import heapq
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import WSGIApplication

import gevent
from gevent import socket

from webapp.http.connection import Connection
from webapp.http.intake import Intake
from webapp.http.limits import ServerLimits
from webapp.http.response import Response
from webapp.http.short_path import MakeShortPath
from webapp.http.tls import TlsConnection, Turns

# (environ, response, seconds taken)
AccessLog = Callable[[dict[str, Any], Response, float], None]
# Called like a WSGI application; None: receive the body, then run the application itself.
BeforeBody = Callable[[dict[str, Any], Any], Iterable[bytes] | None]
# The limit of a body in bytes, by its request's environ; None: `ServerLimits.body_bytes` for all.
BodyLimit = Callable[[dict[str, Any]], int]


class Connections:
    """Runs `app` for every connection that it is given.

    `on_request` is called before each request's application, `on_change` with the number of connections.
    `before_body` is called while a request's body has yet to arrive: it may answer without it, and the body
    is discarded. `body_limit` gives the limit of a body that is over the usual one. `short_path` makes the short path
    of a connection's requests. With `tls` every connection begins with a handshake.
    """

    def __init__(
        self,
        app: WSGIApplication,
        limits: ServerLimits,
        *,
        access: AccessLog | None,
        on_request: Callable[[], None],
        on_change: Callable[[int], None],
        before_body: BeforeBody | None = None,
        short_path: MakeShortPath | None = None,
        body_limit: BodyLimit | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.access = access
        self.count_request = on_request
        self.before_body = before_body
        self.body_limit = body_limit
        # Without a log line for each request, which is made of an environ and a response.
        self.short_path = short_path if access is None else None
        self.intake = Intake(limits.arriving_bytes)
        self.shutting_down = False
        self._tls = tls
        self._turns = Turns() if tls is not None else None
        self._on_change = on_change
        self._connections: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, sock: socket.socket, base_environ: dict[str, Any]) -> None:
        """Serve an accepted socket; the environ belongs to the connection from here on."""
        if self._tls is None or self._turns is None:
            connection = Connection(self, sock, base_environ)
        else:
            connection = TlsConnection(self, sock, base_environ, self._tls, self._turns)
        self._connections.add(connection)
        self._on_change(len(self._connections))
        connection.start()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._on_change(len(self._connections))

    def reap(self) -> None:
        """End every wait whose deadline has passed. Called in the hub, about twice a second."""
        now = time.monotonic()
        for connection in [each for each in self._connections if each.deadline <= now]:
            # An earlier one in this round may have changed this one's deadline.
            if connection.deadline <= now:
                connection.expire()

    def make_room(self, count: int) -> int:
        """Close up to `count` connections that wait for their clients. Called in the hub. Returns the number."""
        waiting = [(claim, id(each), each) for each in self._connections if (claim := each.dispensable) is not None]
        found = heapq.nsmallest(count, waiting)
        for _, _, connection in found:
            # An earlier one in this round may have let this one go on.
            if connection.dispensable is not None:
                connection.evict()
        return len(found)

    def begin_shutdown(self) -> None:
        """Close each connection with its next response; an idle one is kept for a moment, for one more request."""
        self.shutting_down = True
        latest = time.monotonic() + self.limits.drain_idle_s
        for connection in self._connections:
            if connection.idle:
                connection.deadline = min(connection.deadline, latest)

    def kill(self, timeout_s: float) -> None:
        """Kill the connections that are left, whatever they are doing."""
        gevent.joinall([connection.kill() for connection in list(self._connections)], timeout=timeout_s)
