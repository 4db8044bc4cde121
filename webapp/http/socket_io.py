"""A client's socket with deadlines: wait, receive, send, close. This module knows nothing of HTTP.

Each channel belongs to one greenlet. While the greenlet waits for its socket, and only then, `deadline` is the time at
which the wait must end. One reaper checks all channels of a worker (`Connections.reap`), so a request needs no timer
of its own.
"""

from __future__ import annotations

import _socket
import abc
import contextlib
import logging
import math
import socket
import time
from typing import Any

import gevent
from gevent.hub import get_hub

from webapp.http.errors import ClientGoneError, WaitExpiredError
from webapp.http.limits import ServerLimits

logger = logging.getLogger(__name__)

_READ, _WRITE = 1, 2
PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT
# Responses of pipelined requests are sent together up to about this much.
_COALESCE_BYTES = 64 * 1024
# Discarded data goes into one buffer that all connections share.
_waste = bytearray(256 * 1024)
# A client that fills the buffer each time sends faster than a slow upload, and would keep the event loop busy.
_WASTE_PAUSE_S = 0.01
# A client that sends more than this without reading its response is disconnected.
_LINGER_BYTES = 64 * 1024 * 1024
_NOT_NOW = (BlockingIOError, InterruptedError)


class Channel(abc.ABC):
    """`sock` is a gevent socket; the greenlet runs the subclass's `run()`."""

    __slots__ = (
        "_buffer",
        "_flush_is_due",
        "_greenlet",
        "_hub",
        "_limits",
        "_listens",
        "_raw",
        "_reader",
        "_reads",
        "_received",
        "_sock",
        "_switch",
        "_unsent",
        "_writer",
        "deadline",
    )

    def __init__(self, sock: Any, limits: ServerLimits) -> None:
        self._limits = limits
        self._sock = sock
        # The socket under gevent's, which saves one Python frame per call.
        self._raw = sock._sock  # noqa: SLF001
        self._hub = get_hub()
        self._reader = self._hub.loop.io(sock.fileno(), _READ)
        # Whether the reader is started, and whether the greenlet waits for it.
        self._listens = self._reads = False
        self._writer: Any = None
        self._greenlet: Any = None
        self._switch: Any = None
        # Received and not used yet.
        self._buffer = b""
        # Received by the event loop for the greenlet that waits; b"" is the end, None nothing.
        self._received: bytes | None = None
        # To be sent and not taken by the kernel yet.
        self._unsent = b""
        self._flush_is_due = False
        # Monotonic; infinite while the greenlet does not wait for its socket.
        self.deadline = math.inf

    def start(self) -> None:
        self._greenlet = gevent.spawn(self.run)
        self._switch = self._greenlet.switch

    @abc.abstractmethod
    def run(self) -> None:
        """Serve until the connection ends."""

    def expire(self) -> None:
        """Called in the hub when the deadline has passed; must not block."""
        self._greenlet.throw(WaitExpiredError())

    def kill(self) -> Any:
        """Kill the greenlet whatever it does, and return it to be joined."""
        self._greenlet.kill(block=False)
        return self._greenlet

    def disconnected(self) -> bool:
        """True if the client has disconnected.

        A client whose data has arrived counts as connected: it has sent its next request and waits for both answers.
        One that has closed only its sending side cannot be told from one that is gone, and counts as gone.
        """
        if self._buffer:
            return False
        try:
            return not self._raw.recv(1, PEEK)
        except _NOT_NOW:
            return False
        except OSError:
            return True

    def _receive(self, size: int, deadline: float) -> bytes:
        """Receive at least one byte, or b"" at the end. Raises `WaitExpiredError`, `OSError`."""
        if self._unsent:
            self._flush()
        while True:
            # Wait first, then read: a client that waits for its answer has sent nothing yet, and a read that fails
            # costs more than the event.
            self._wait_readable(deadline)
            received, self._received = self._received, None
            if received is not None:
                return received
            try:
                return self._raw.recv(size)  # type: ignore[no-any-return]
            except _NOT_NOW:
                continue

    def _receive_into(self, room: memoryview, deadline: float) -> int:
        """The same into a buffer; returns the number of bytes."""
        if not isinstance(self._raw, _socket.socket):
            # TLS has the bytes in records of its own.
            data = self._receive(len(room), deadline)
            room[: len(data)] = data
            return len(data)
        if self._unsent:
            self._flush()
        while True:
            self._wait_readable(deadline)
            try:
                return self._raw.recv_into(room)
            except _NOT_NOW:
                continue

    def _wait_readable(self, deadline: float) -> None:
        self.deadline = deadline
        self._reads = True
        if not self._listens:
            self._listens = True
            self._reader.start(self._on_readable)
        try:
            self._hub.switch()
        finally:
            self._reads = False
            self.deadline = math.inf

    def _on_readable(self) -> None:
        """Called in the hub. The reader stays started from one request to the next: stopping and starting it, as
        gevent's own sockets do, costs two calls of libev and a system call each time. Data that comes while nobody
        reads (the next request of a pipeline, or the end) stops it.
        """
        if self._reads:
            self._switch()
        else:
            self._reader.stop()
            self._listens = False

    def _wait(self, watcher: Any, deadline: float) -> None:
        self.deadline = deadline
        watcher.start(self._switch)
        try:
            self._hub.switch()
        finally:
            watcher.stop()
            self.deadline = math.inf

    def send(self, data: bytes) -> None:
        """Send now, after any data held back; returns when the kernel has it. Raises `ClientGoneError`."""
        if self._unsent:
            self._unsent += data
            self._flush()
            return
        try:
            sent = self._raw.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            raise ClientGoneError(str(error)) from None
        if sent != len(data):
            self._unsent = data[sent:]
            self._flush()

    def send_last(self, data: bytes) -> None:
        """Send the end of a response; together with the next response if the next request is here already."""
        if not self._buffer or len(self._unsent) + len(data) > _COALESCE_BYTES:
            self.send(data)
            return
        self._unsent += data
        if not self._flush_is_due:
            # If the next request waits for something, the hub runs and this response leaves without it.
            self._flush_is_due = True
            self._hub.loop.run_callback(self._flush_in_hub)

    def _flush(self) -> None:
        while self._unsent:
            # Taken before it is sent: while we wait, the hub's flush must find nothing.
            data, self._unsent = memoryview(self._unsent), b""
            while data:
                try:
                    data = data[self._raw.send(data) :]
                except _NOT_NOW:
                    self._wait_writable()
                except OSError as error:
                    raise ClientGoneError(str(error)) from None

    def _wait_writable(self) -> None:
        if self._writer is None:
            self._writer = self._hub.loop.io(self._sock.fileno(), _WRITE)
        try:
            self._wait(self._writer, time.monotonic() + self._limits.send_time_s)
        except WaitExpiredError:
            raise ClientGoneError("the client reads nothing of its response") from None

    def _flush_in_hub(self) -> None:
        self._flush_is_due = False
        if self._unsent:
            # The greenlet must find errors itself: its next send meets them again.
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[self._raw.send(self._unsent) :]

    def _close(self, *, linger: bool) -> None:
        try:
            if self._unsent:
                self._flush()
            if linger and self._limits.linger_s:
                self._linger()
        except (ClientGoneError, WaitExpiredError, OSError) as error:
            logger.debug("error while closing a connection: %r", error)
        finally:
            self._reader.close()
            if self._writer is not None:
                self._writer.close()
            self._sock.close()
            self._greenlet = self._switch = None

    def _linger(self) -> None:
        """RFC 9112 9.6: send the end, then read and discard until the client has received it."""
        self._raw.shutdown(socket.SHUT_WR)
        latest = time.monotonic() + self._limits.linger_most_s
        thrown_away = 0
        while thrown_away < _LINGER_BYTES:
            self._wait_for_more(latest)
            received = self._raw.recv_into(_waste)
            if not received:
                return
            thrown_away += received
            if received == len(_waste):
                gevent.sleep(_WASTE_PAUSE_S)

    def _wait_for_more(self, latest: float) -> None:
        """Wait for data that is thrown away, until `latest` at most. Raises WaitExpiredError."""
        deadline = min(latest, time.monotonic() + self._limits.linger_s)
        try:
            self._wait_readable(deadline)
        except WaitExpiredError:
            # Before its time: its place is needed. After it: where this process stood still, data may have come in
            # time, and closing on that would be a reset.
            if not deadline <= time.monotonic() < latest:
                raise
