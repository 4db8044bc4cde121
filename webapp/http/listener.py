"""Accepts connections from a listening socket."""

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
# How long others may go first, how often in a row, and how many connections to take at once if even then none did: a
# worker whose application blocks its process cannot accept, however few connections it has.
_YIELD_S = 0.005
_YIELDS = 10
_BATCH_AFTER_YIELDS = 8
_PAUSE_S = 0.5
# How often a full worker looks for a connection that can be closed.
_LOOK_S = 0.1
# The part of a full worker's connections that is closed at once.
_PLACES = 64
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """One listening socket. `resume()` starts it, also again once a full worker has room; `close()` ends it.

    `cap` bounds the connections of the worker, over all listeners. In a full worker a new client gets the place of an
    idle connection; it waits only if every connection is waiting for an answer.
    """

    def __init__(self, service: Connections, sock: Any, base_environ: dict[str, Any], seat: Seat, *, cap: int) -> None:
        self._service = service
        self._sock = sock
        # The socket under gevent's, to accept without blocking.
        self._raw = sock._sock  # noqa: SLF001
        self._raw.setblocking(False)
        self._family = sock.family
        self._base = base_environ | _server_names(sock.getsockname())
        self._seat = seat
        self._cap = cap
        loop = get_hub().loop
        self._watcher = loop.io(sock.fileno(), 1)
        # Repeating timers, started with `again`: libev keeps the rest of a one-shot timer's time when it is stopped, so
        # its second `start` would fire at once.
        self._yielding = loop.timer(_YIELD_S, _YIELD_S)
        self._yields = 0
        self._pausing = loop.timer(_PAUSE_S, _PAUSE_S)
        self._looking = loop.timer(_LOOK_S, _LOOK_S)

    def resume(self) -> None:
        if not (self._watcher.active or self._yielding.active or self._pausing.active):
            self._looking.stop()
            self._watcher.start(self._on_readable)

    def drain(self) -> None:
        """Accept the connections that the kernel has completed: closing the listener would reset them."""
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
        """Accept the `number`th connection of a batch; returns whether to go on."""
        if len(self._service) < self._cap:
            return self._accept()
        # A full worker takes one per turn of the loop: a connection accepted in this turn does not wait for its client
        # yet, so the older, known ones would have to make room.
        if number == 0:
            # Several at once, since finding them costs a pass over all.
            if self._service.make_room(1 + self._cap // _PLACES):
                self._accept()
            else:
                # `resume()` is called when one of them closes.
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
                # The connection stays in the backlog and the socket readable: look again when there may be room.
                self._watcher.stop()
                self._seat.publish(math.inf)
                self._pausing.again(self._after_pause)
            return False
        sock = socket.socket(self._family, stdlib_socket.SOCK_STREAM, 0, fileno=fd)
        base = self._base.copy()
        # TCP_NODELAY is inherited from the listening socket, where gunicorn sets it.
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
    # A unix socket has a path only, but WSGI wants a name and a port that are not empty.
    return {"SERVER_NAME": "localhost", "SERVER_PORT": "80"}
