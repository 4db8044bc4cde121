"""The web server: gunicorn's processes, gevent's event loop, llhttp's parser, any WSGI application.

    gunicorn -k webapp.server.Worker --workers 2 module:app

        backlog (2048)
          │ accept, one at a time where workers share it; at `worker_connections` who says nothing makes room
          ▼
    webapp.http.listener ─── out of file numbers: pause, try again
          │ a greenlet per connection
          ▼
    (webapp.http.tls) ────────── a handshake, where `tls` is set
          ▼
    webapp.http.connection ◀── webapp.http.connections: one reaper for all deadlines, the shutdown
          │ bytes up to the blank line ── too long 414, 431 · too slow 408 · nothing at all: closed in silence
          ▼
    webapp.http.head ─────────── not HTTP/1.x, unclear where it ends 400 · fields 400, 431 · expectation 417
          │ environ
          ▼
    the body, whole ──────────── announced or counted over the limit 413 · bad chunks, cut short 400 · slow 408
    (webapp.http.chunked)        the application's `before_body` answers without it · no memory left for it 503
          │ environ with wsgi.input
          ▼
    the application ──────────── raises: 500 INTERNAL, or a broken connection once its response has begun
          │ start_response, iterable
          ▼
    webapp.http.response ─────── a header with a line end in it, a length that is none: 500 INTERNAL
          │ head + body in one send; responses of pipelined requests together
          ▼
        client ───────────────── takes nothing for `send_time_s`, or is gone: the iterable is closed

Refusals (4xx and 503 above) never reach the application and always close the connection: see `webapp.http.errors`.

An application may have a method `before_body(environ, start_response)`. It is called when the rest of a body has yet to
be read, so that it can refuse a stranger without reading it; None lets the body come. A method `short_path(environ)`
may serve a connection's plain requests in the event loop: see `webapp.http.short_path`. A method `body_limit(environ)`
gives the limit of a body that may be larger than the others.

The environ holds, besides WSGI's keys: `gunicorn.socket`; `bunch.disconnected()`, true once the client has
disconnected; `bunch.shutting_down()`, true once this worker has been told to stop; `bunch.forwarded`, `1` if a proxy
has passed the request on; `bunch.client_certificate` where a client has shown one. Not offered: HTTP/2 (use a proxy),
gunicorn's `pre_request` and `post_request` hooks, and its control socket, whose thread does not run in a patched
master: set `control_socket_disable`.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gevent import monkey, socket
from gevent.event import Event
from gevent.hub import get_hub
from gunicorn.errors import ConfigError
from gunicorn.workers.ggevent import GeventWorker

from config.process import descriptors
from webapp.http.accept_balance import AcceptBalance
from webapp.http.connections import Connections
from webapp.http.limits import ServerLimits
from webapp.http.listener import Listener
from webapp.http.response import Response

logger = logging.getLogger(__name__)

_REAP_EVERY_S = 0.5
_KILL_S = 1.0
# How long before the end of `graceful_timeout` remaining callers are told, so that the answers reach them.
_LAST_MOMENT_S = 1.0
# gunicorn imports this module in the master, so all workers inherit it.
_board = AcceptBalance()


class Worker(GeventWorker):
    """gunicorn's gevent worker with our own socket loop. `limits` and `tls` are set in gunicorn's `post_fork`.

    `tls` is made in the master: all its workers, also one that is started later, have the same certificate and the same
    keys of session tickets.

    `on_stopping` is called when the worker begins to stop, `on_last_moment` shortly before connections that have not
    drained are closed. `save_s` are the last seconds of `graceful_timeout`, which `worker_exit` needs.
    """

    limits: ServerLimits = ServerLimits()
    tls: ssl.SSLContext | None = None
    save_s: float = 0.0
    on_stopping: Callable[[], None] = staticmethod(lambda: None)
    on_last_moment: Callable[[], None] = staticmethod(lambda: None)
    # gunicorn's attribute: false from the stop signal onwards.
    alive: bool
    sockets: list[Any]

    @classmethod
    def setup(cls) -> None:
        """Patch the master. gunicorn calls this once it has the class, before it may preload the application.

        An application that is loaded before the fork finds cooperative locks and sockets. Fork, wait and signals are
        not patched: gevent would reap the workers through an event loop that the master does not run.
        """
        monkey.patch_all(os=False, signal=False)

    def patch(self) -> None:
        """Patch the rest in the worker; gunicorn's own patch would repeat the first part, with a warning."""
        monkey.patch_os()
        monkey.patch_signal()
        self.sockets = [
            socket.socket(sock.FAMILY, socket.SOCK_STREAM, fileno=sock.sock.detach()) for sock in self.sockets
        ]

    @classmethod
    def check_config(cls, cfg: Any, _log: Any) -> None:
        if cfg.is_ssl:
            raise ConfigError("webapp.server.Worker has `tls`, a context of its own: leave certfile and keyfile out")

    @property
    def shutting_down(self) -> bool:
        return not self.alive

    def notify(self) -> None:
        super().notify()
        self._seat.beat()

    def run(self) -> None:
        hub = get_hub()
        self._listeners: list[Listener] = []
        self._seat = _board.seat(self.age)
        self._seat.publish(0)
        self._woken = Event()
        self._service = Connections(
            self.wsgi,
            self.limits.with_gunicorn(self.cfg),
            access=self._log_access if self.log.access_log_enabled else None,
            on_request=self._count_request,
            on_change=self._on_change,
            before_body=getattr(self.wsgi, "before_body", None),
            short_path=getattr(self.wsgi, "short_path", None),
            body_limit=getattr(self.wsgi, "body_limit", None),
            tls=self.tls,
        )
        self._cap = min(self.worker_connections, descriptors.for_clients())
        base = self._base_environ()
        self._listeners = [Listener(self._service, sock, base, self._seat, cap=self._cap) for sock in self.sockets]
        # Python writes each signal's number into gunicorn's pipe, so a stop is noticed at once.
        wakeup = hub.loop.io(self.PIPE[0], 1)
        wakeup.start(self._on_signal)
        reaper = hub.loop.timer(_REAP_EVERY_S, _REAP_EVERY_S)
        reaper.start(self._service.reap)
        for listener in self._listeners:
            listener.resume()
        while self.alive:
            self.notify()
            self._woken.wait(1.0)
            self._woken.clear()
        self._drain()
        reaper.stop()
        wakeup.stop()

    def _drain(self) -> None:
        """Finish accepted requests for at most `graceful_timeout` less `save_s`, then refuse the rest."""
        self.on_stopping()
        self._service.begin_shutdown()
        self._seat.leave()
        for listener in self._listeners:
            listener.drain()
            listener.close()
        self._listeners = []
        limit_s = self.cfg.graceful_timeout - self.save_s
        deadline = time.monotonic() + limit_s
        last_moment = deadline - min(_LAST_MOMENT_S, limit_s / 4)
        notified_at = 0.0
        while len(self._service):
            now = time.monotonic()
            if now >= deadline:
                logger.warning("graceful_timeout is over: closing %d connections", len(self._service))
                self._service.kill(_KILL_S)
                return
            if now - notified_at >= 1.0:
                self.notify()
                notified_at = now
            if now >= last_moment:
                last_moment = deadline
                self.on_last_moment()
            self._woken.clear()
            self._woken.wait(min(1.0, last_moment - now))

    def _base_environ(self) -> dict[str, Any]:
        return {
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http" if self.tls is None else "https",
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": self.cfg.workers > 1,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "SERVER_SOFTWARE": "bunch",
            "SCRIPT_NAME": "",
            "bunch.shutting_down": lambda: self.shutting_down,
        }

    def _on_signal(self) -> None:
        os.read(self.PIPE[0], 4096)
        self._woken.set()

    def _count_request(self) -> None:
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
            self._woken.set()

    def _on_change(self, connections: int) -> None:
        self._seat.publish(connections)
        if not self.alive:
            self._woken.set()
        elif connections < self._cap:
            for listener in self._listeners:
                listener.resume()

    def _log_access(self, environ: dict[str, Any], response: Response, took_s: float) -> None:
        took = timedelta(seconds=took_s)
        self.log.access(_AccessedResponse(response), _request_headers(environ), environ, took)


class _AccessedResponse:
    """The attributes of a response that gunicorn's logger reads."""

    __slots__ = ("headers", "sent", "status")

    def __init__(self, response: Response) -> None:
        self.status = response.status or "-"
        self.headers = list(response.headers)
        self.sent = response.sent_bytes


def _request_headers(environ: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
