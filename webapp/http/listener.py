"""Accepting: from a listening socket to a connection of the service."""

from __future__ import annotations

import errno
import logging
import math
import socket as stdlib_socket
from typing import Any

from gevent import socket
from gevent.hub import get_hub

from webapp.http.accept_balance import Seat
from webapp.http.connections import Connections

logger = logging.getLogger(__name__)

_BATCH = 64
# How long others may go first, how often in a row, and how many we take at once if even then none did: a worker
# whose application holds its process cannot accept, however few connections it has.
_YIELD_S = 0.005
_YIELDS = 10
_BATCH_AFTER_YIELDS = 8
_PAUSE_S = 0.5
# How often a worker that is full looks for a connection that waits for its client.
_LOOK_S = 0.1
# The part of a full worker's connections that is closed at once.
_PLACES = 64
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """One listening socket. `resume()` begins, and again once a full worker has room; `close()` is the end.

    `cap` bounds the connections of the worker, whichever listener they came from. A new client gets the place of one
    that says nothing; only where every connection waits for an answer does it wait for a place.
    """

    def __init__(self, service: Connections, sock: Any, base_environ: dict[str, Any], seat: Seat, *, cap: int) -> None:
        self._service = service
        self._sock = sock
        # The socket under gevent's: accept without blocking.
        self._raw = sock._sock  # noqa: SLF001
        self._raw.setblocking(False)
        self._family = sock.family
        self._base = base_environ | _server_names(sock.getsockname())
        self._seat = seat
        self._cap = cap
        loop = get_hub().loop
        self._watcher = loop.io(sock.fileno(), 1)
        # Repeating timers, begun with `again`: libev keeps what was left of a one-shot's time when it is stopped, so
        # the second `start` of one would fire at once.
        self._yielding = loop.timer(_YIELD_S, _YIELD_S)
        self._yields = 0
        self._pausing = loop.timer(_PAUSE_S, _PAUSE_S)
        self._looking = loop.timer(_LOOK_S, _LOOK_S)

    def resume(self) -> None:
        if not (self._watcher.active or self._yielding.active or self._pausing.active):
            self._looking.stop()
            self._watcher.start(self._on_readable)

    def drain(self) -> None:
        """Take what the kernel has already completed: closing the listener would reset those connections."""
        while self._accept():
            pass

    def close(self) -> None:
        for watcher in (self._watcher, self._yielding, self._pausing, self._looking):
            watcher.stop()
            watcher.close()
        self._sock.close()

    def _on_readable(self) -> None:
        for number in range(_BATCH):
            if not self._seat.may_take():
                self._yields = 0
                self._watcher.stop()
                self._yielding.again(self._after_yield)
                return
            if not self._take(number):
                return

    def _after_yield(self) -> None:
        self._yielding.stop()
        self._yields += 1
        if self._seat.may_take():
            self.resume()
        elif self._yields < _YIELDS:
            self._yielding.again(self._after_yield)
        else:
            self.resume()
            for number in range(_BATCH_AFTER_YIELDS):
                if not self._take(number):
                    return

    def _take(self, number: int) -> bool:
        """Accept the batch's `number`th; whether to go on."""
        if len(self._service) < self._cap:
            return self._accept()
        # A worker that is full goes by turns of the loop: who has just been accepted does not wait for its client yet,
        # so within one turn those would have to make room that have been here for longest, and known.
        if number == 0:
            # Some at a time, since to find them costs a look at all.
            if self._service.make_room(1 + self._cap // _PLACES):
                self._accept()
            else:
                # `resume()` comes when one of them closes; that one has its answer, nobody tells.
                self._watcher.stop()
                self._looking.again(self.resume)
        return False

    def _accept(self) -> bool:
        try:
            fd, address = self._raw._accept()  # noqa: SLF001
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            logger.warning("cannot accept connections: %s", error)
            if error.errno in _OUT_OF_RESOURCES:
                self._service.make_room(1 + len(self._service) // _PLACES)
                # The connection stays in the backlog, readable for ever: look again when there may be room.
                self._watcher.stop()
                self._seat.publish(math.inf)
                self._pausing.again(self._after_pause)
            return False
        sock = socket.socket(self._family, stdlib_socket.SOCK_STREAM, 0, fileno=fd)
        base = self._base.copy()
        # TCP_NODELAY comes from the listening socket, where gunicorn sets it.
        if self._family == stdlib_socket.AF_UNIX:
            base["REMOTE_ADDR"] = ""
        else:
            base["REMOTE_ADDR"] = address[0]
            base["REMOTE_PORT"] = str(address[1])
        self._service.open(sock, base)
        return True

    def _after_pause(self) -> None:
        self._pausing.stop()
        self.resume()


def _server_names(address: Any) -> dict[str, str]:
    if isinstance(address, tuple):
        return {"SERVER_NAME": address[0], "SERVER_PORT": str(address[1])}
    # A unix socket has a path; WSGI wants both names, and never empty.
    return {"SERVER_NAME": "localhost", "SERVER_PORT": "80"}
