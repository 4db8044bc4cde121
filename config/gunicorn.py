"""gunicorn's configuration file: `gunicorn -c config/gunicorn.py webapp.app:application`."""

from __future__ import annotations

import mmap
import os
import signal
import ssl
import sys
from dataclasses import replace
from typing import Any

from config.errors import SettingsError
from config.process import descriptors
from config.process.memory import settle_heap
from config.settings import Settings, load_settings


def _server_context(settings: Settings) -> ssl.SSLContext | None:
    """Raises SettingsError."""
    if not settings.tls_cert:
        return None
    # Imported here: few frontends end TLS themselves.
    from config.front_tls import server_context

    return server_context(settings)


def _check_anew() -> None:
    """Raises SettingsError: what a reload would read is wrong, or no client would accept it."""
    settings = load_settings()
    if _server_context(settings) is None:
        return
    from config.front_tls import date_problems, now_utc

    if outdated := tuple(date_problems(settings, now_utc())):
        raise SettingsError(outdated)


_settings = load_settings()
# Shared by the master and its workers.
_failed = mmap.mmap(-1, 1)
# Made here, and again on HUP: workers inherit it, and never read files that are being replaced.
_tls = _server_context(_settings)

_host = f"[{_settings.http_host}]" if ":" in _settings.http_host else _settings.http_host
bind = f"{_host}:{_settings.http_port}"
# In collocated mode the queue is in the one frontend process.
workers = 1 if _settings.mode == "collocated" else _settings.web_workers
worker_class = "webapp.server.Worker"
worker_connections = 10_000
# The usual soft limit of 1024 is reached with a few idle clients, and then nobody else can connect.
descriptors.raise_limit(worker_connections + descriptors.RESERVED)
backlog = 2048
keepalive = 75
# The master kills the worker then: what the worker saves after its own graceful timeout needs time, too.
graceful_timeout = int(_settings.graceful_timeout_s) + _settings.save_s
# The timeout of the event loop's heartbeat, not of a request: requests have their own deadlines.
timeout = 60
# gunicorn's control socket does not work in a master whose modules gevent has patched.
control_socket_disable = True
limit_request_line = 8190
limit_request_fields = 100
proc_name = "bunch-web"
logger_class = "webapp.gunicorn_logger.GunicornLog"


def on_starting(server: Any) -> None:
    """Check the settings on HUP: gunicorn reads this file again then, and exits when that fails, so a typing error
    would end the frontend.
    """
    reload = server.handle_hup

    def reload_if_right() -> None:
        try:
            _check_anew()
        except SettingsError as error:
            server.log.error(
                "Reload on HUP refused: the settings are invalid, and the previous ones stay in force:\n%s", error
            )
        else:
            reload()

    server.handle_hup = reload_if_right


def post_fork(server: Any, worker: Any) -> None:
    worker.save_s = _settings.save_s
    worker.limits = replace(worker.limits, body_bytes=_settings.max_body_bytes, arriving_bytes=_settings.arriving_bytes)
    worker.tls = _tls


def end_in_failure() -> None:
    """Stop the server in order, and let it exit with status 1: gunicorn itself would only start the worker again."""
    _failed[0] = 1
    os.kill(os.getppid(), signal.SIGTERM)


def on_exit(server: Any) -> None:
    if _failed[0]:
        sys.exit(1)


def post_worker_init(worker: Any) -> None:
    worker.wsgi.end_in_failure = end_in_failure
    worker.wsgi.start()
    worker.on_stopping = worker.wsgi.stopping
    worker.on_last_moment = worker.wsgi.refuse
    settle_heap()


def worker_exit(server: Any, worker: Any) -> None:
    if getattr(worker, "wsgi", None) is not None:
        worker.wsgi.stop()
