"""A client's connection under TLS: the same requests as `webapp.http.connection` serves, after a handshake.

    accept ─▶ handshake, `handshake_time_s` at most ─▶ webapp.http.connection
                 ├ plain HTTP: 400 in clear text
                 └ too slow, no common version, a certificate that is not of our authority: closed

A handshake costs up to a millisecond of the event loop (a signature with an RSA key), where a request costs a tenth of
that. So handshakes have a part of each turn of the loop, and established connections the rest.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent
from gevent.hub import get_hub

from webapp.http.certificate import CERTIFICATE, ClientCertificate
from webapp.http.connection import Connection
from webapp.http.errors import ClientGoneError, WaitExpiredError, request_id_from
from webapp.http.response import error_response
from webapp.http.socket_io import PEEK

if TYPE_CHECKING:
    from webapp.http.connections import Connections

logger = logging.getLogger(__name__)

# Of each turn of the loop. Two signatures with an RSA key, or a dozen with an elliptic one.
SLICE_S = 0.002
# The longest plain text of a record: what was received beside what was asked for is never more.
_RECORD_BYTES = 16 * 1024
_MOST_THROWN_AWAY = 16


class Turns:
    """Divides the event loop: handshakes run for `SLICE_S` in each of its turns, and wait for the next one then."""

    def __init__(self, slice_s: float = SLICE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_s = slice_s
        self._clock = clock
        self._hub = get_hub()
        # Due at once, which is after the events of the turn that is under way.
        self._next = self._hub.loop.timer(0.0)
        self._spent_s = 0.0
        # In the order in which they came.
        self._waiting: dict[Any, None] = {}

    def run(self, step: Callable[[], None]) -> None:
        """Call `step` in the greenlet that asks, as soon as it has its turn."""
        if self._waiting or self._spent_s >= self._slice_s:
            me = gevent.getcurrent()
            self._waiting[me] = None
            try:
                self._hub.switch()
            finally:
                # It may have been woken by an error, such as that of a kill.
                self._waiting.pop(me, None)
        began = self._clock()
        try:
            step()
        finally:
            self._spent_s += self._clock() - began
            if not self._next.active:
                self._next.start(self._begin)

    def _begin(self) -> None:
        self._spent_s = 0.0
        while self._waiting and self._spent_s < self._slice_s:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.switch()
        if self._waiting and not self._next.active:
            self._next.start(self._begin)


class TlsSocket:
    """The methods of a socket that `webapp.http.socket_io.Channel` uses, over OpenSSL. It never blocks.

    `tcp` is the socket below. Not `ssl.SSLSocket`: gevent's blocks its greenlet without our deadlines, and the
    standard library's cannot be made once gevent has patched it.
    """

    __slots__ = ("_tls", "handshake", "peer", "pending", "tcp")

    def __init__(self, context: ssl.SSLContext, tcp: Any) -> None:
        self.tcp = tcp
        self._tls: Any = context._wrap_socket(tcp, server_side=True)  # type: ignore[attr-defined]  # noqa: SLF001
        self.handshake: Callable[[], None] = self._tls.do_handshake
        # How much plain text can be read though the socket has nothing.
        self.pending: Callable[[], int] = self._tls.pending
        self.peer: Callable[[], dict[str, Any] | None] = self._tls.getpeercert

    def recv(self, size: int) -> bytes:
        try:
            return self._tls.read(size)  # type: ignore[no-any-return]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def send(self, data: bytes | memoryview) -> int:
        """Send a part of `data` and return its size; after BlockingIOError the same bytes must be sent again."""
        try:
            return self._tls.write(data)  # type: ignore[no-any-return]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: bytearray) -> int:
        """Read what is thrown away: it need not be decrypted."""
        return self.tcp.recv_into(buffer)  # type: ignore[no-any-return]

    def shutdown(self, how: int) -> None:
        self.notify()
        self.tcp.shutdown(how)

    def notify(self) -> None:
        """Tell the client that this was the end, so that it can tell the end from a connection that was cut."""
        # The client's own notice is not waited for.
        with contextlib.suppress(OSError, ValueError):
            self._tls.shutdown()


class TlsConnection(Connection):
    """A connection whose `_raw` is a `TlsSocket`."""

    __slots__ = ("_early", "_established", "_turns")

    def __init__(
        self, service: Connections, sock: Any, base_environ: dict[str, Any], context: ssl.SSLContext, turns: Turns
    ) -> None:
        super().__init__(service, sock, base_environ)
        self._raw = TlsSocket(context, self._raw)
        self._turns = turns
        self._established = False
        # What came while somebody asked whether the client is still there: the next request, or a part of it.
        self._early = b""

    def run(self) -> None:
        try:
            self._shake_hands()
        except (ClientGoneError, WaitExpiredError, OSError) as error:
            self._explain(error)
        finally:
            if not self._established:
                self._close(linger=False)
        if self._established:
            super().run()

    def disconnected(self) -> bool:
        """True if the client has disconnected; as without TLS, but what has arrived must be decrypted to be known."""
        tls: TlsSocket = self._raw
        if self._buffer or self._early or tls.pending():
            return False
        try:
            # One system call, as without TLS, for a client that waits.
            if not tls.tcp.recv(1, PEEK):
                return True
            self._early = tls.recv(_RECORD_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._early

    def must_close(self) -> bool:
        return super().must_close() and not self._early

    def answer(self, data: bytes) -> None:
        super().answer(data)
        # Its greenlet waits for the socket, which may have no more. One that still sends looks here by itself.
        if self._early and self._reads and self._received is None:
            self._received, self._early = self._early, b""
            self._switch()

    def _receive(self, size: int, deadline: float) -> bytes:
        if self._unsent:
            self._flush()
        if self._early:
            early, self._early = self._early, b""
            return early
        tls: TlsSocket = self._raw
        if tls.pending():
            return tls.recv(size)
        return super()._receive(size, deadline)

    def _shake_hands(self) -> None:
        tls: TlsSocket = self._raw
        deadline = time.monotonic() + self._limits.handshake_time_s
        # Like a connection that has not asked for anything yet: it makes room for others.
        self.idle = True
        try:
            while True:
                try:
                    self._turns.run(tls.handshake)
                    break
                except ssl.SSLWantReadError:
                    if self._service.shutting_down:
                        deadline = min(deadline, time.monotonic() + self._limits.drain_idle_s)
                    self._wait_readable(deadline)
                except ssl.SSLWantWriteError:
                    self._wait_writable()
        finally:
            self.idle = False
        self._established = True
        peer = tls.peer()
        if peer:
            self._base[CERTIFICATE] = ClientCertificate.of(peer)

    def _explain(self, error: Exception) -> None:
        client = self._base["REMOTE_ADDR"]
        if not isinstance(error, ssl.SSLError):
            logger.debug("a connection ended before its TLS handshake: %r", error)
            return
        logger.info("the TLS handshake with %s failed: %s", client, error.reason or error)
        if error.reason != "HTTP_REQUEST":
            return
        message = "This port speaks TLS: use https://."
        answer = error_response(
            "400 Bad Request", "INVALID_INPUT", message, request_id_from(None), keep_alive=False, is_head=False
        )
        tcp = self._raw.tcp
        with contextlib.suppress(OSError):
            tcp.send(answer)
            # What it has sent is still unread, so that closing would be a reset, which overtakes the answer.
            tcp.shutdown(socket.SHUT_WR)
            # In the event loop's time, so not for as long as it may go on sending.
            for _ in range(_MOST_THROWN_AWAY):
                if not tcp.recv(_RECORD_BYTES):
                    break

    def _close(self, *, linger: bool) -> None:
        if self._established and not linger and not self._unsent:
            self._raw.notify()
        super()._close(linger=linger)
