"""The application behind the web server's tests: each route shows one thing that a WSGI application may do."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gevent
from gevent.hub import get_hub

from webapp.http.response import plain_response
from webapp.http.short_path import LoopChannel

_state = {"abandoned": 0, "calls": 0, "closed": 0, "noticed": 0, "short": 0, "written": 0}
_SHOWN = (str, int, bool)


class App:
    """A WSGI application, with the server's hooks before a body is received, and for the event loop."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/state":
            return _json(start_response, {**_state, "pid": os.getpid()})
        _state["calls"] += 1
        route = _ROUTES.get(path, _echo)
        return route(environ, start_response)

    def short_path(self, environ: dict[str, Any]) -> _ShortPath | None:
        return _ShortPath() if environ["PATH_INFO"].startswith("/short-path") else None

    def before_body(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        if "HTTP_X_STRANGER" not in environ:
            return None
        start_response("401 Unauthorized", [("Content-Type", "text/plain")])
        return [b"who are you?"]


class _ShortPath:
    """Takes requests whose body is `answer SIZE`, `resume`, `until PATH` or `break`; it leaves others."""

    def take(self, body: bytes, channel: LoopChannel) -> _Exchange | None:
        kind, _, argument = body.decode().partition(" ")
        if kind == "break":
            raise RuntimeError("broken on purpose, in the event loop")
        if kind not in {"answer", "resume", "until"}:
            return None
        _state["short"] += 1
        return _Exchange(channel, kind, argument)


class _Exchange:
    def __init__(self, channel: LoopChannel, kind: str, argument: str) -> None:
        self._channel = channel
        self._kind = kind
        self._argument = argument
        self._timer = get_hub().loop.timer(0.01, 0.01)
        self._timer.start(self._look)

    def abandon(self) -> None:
        _state["abandoned"] += 1
        self._timer.close()

    def _look(self) -> None:
        if self._kind == "until":
            path = Path(self._argument)
            path.with_suffix(".here").touch()
            if not path.exists():
                return
        self._timer.close()
        if self._kind == "resume" or self._channel.must_close():
            self._channel.resume()
        else:
            body = b"x" * int(self._argument if self._kind == "answer" else 5)
            headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
            self._channel.answer(plain_response("200 OK", headers, body))


def _json(start_response: Any, value: Any, *headers: tuple[str, str]) -> list[bytes]:
    body = json.dumps(value).encode()
    length = ("Content-Length", str(len(body)))
    start_response("200 OK", [("Content-Type", "application/json"), length, *headers])
    return [body]


def _echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    shown = {key: value for key, value in environ.items() if isinstance(value, _SHOWN)}
    shown["body"] = environ["wsgi.input"].read().decode("latin-1")
    shown["pid"] = os.getpid()
    if environ["REMOTE_ADDR"]:
        shown["nodelay"] = bool(environ["gunicorn.socket"].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return _json(start_response, shown | {"certificate": environ.get("bunch.client_certificate")})


def _size(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return _json(start_response, len(environ["wsgi.input"].read()))


def _no_length(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    return (part for part in (b"one", b"", b"two"))


def _list(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"one", b"two"]


def _empty(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("204 No Content", [("Content-Length", "0")])
    return []


class _Closing:
    """An iterable whose `close()` is counted."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        _state["closed"] += 1


def _closing(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return _Closing(iter([b"o", b"k"]))


def _events(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Send an event, then wait for a second request before the next event."""
    start_response("200 OK", [("Content-Type", "text/event-stream"), ("X-Accel-Buffering", "no")])
    yield b"data: 1\n\n"
    seen = _state["calls"]
    while _state["calls"] == seen:
        gevent.sleep(0.01)
    yield b"data: 2\n\n"


def _endless(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    def parts() -> Iterator[bytes]:
        while True:
            _state["written"] += 1
            yield b"x" * 65536

    start_response("200 OK", [])
    return _Closing(parts())


def _write(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    write = start_response("200 OK", [])
    write(b"written, ")
    write(b"")
    return [b"returned"]


def _raises(_environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
    raise RuntimeError("broken on purpose")


def _raises_late(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    yield b"half"
    raise RuntimeError("broken on purpose, late")


def _leaks_timeout(_environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
    raise gevent.Timeout(1)


def _exc_info(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("X-First", "1")])
    try:
        raise RuntimeError("handled")
    except RuntimeError:
        start_response("503 Service Unavailable", [("X-Second", "1")], sys.exc_info())
    return [b"sorry"]


def _exc_info_late(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    yield b"half"
    try:
        raise RuntimeError("too late")
    except RuntimeError:
        start_response("503 Service Unavailable", [], sys.exc_info())
    yield b"never"


def _twice(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    start_response("200 OK", [])
    return [b""]


def _never_starts(_environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
    return [b"body"]


def _short(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "10")])
    return [b"four"]


def _long(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "4")])
    return [b"four", b" and more"]


def _split(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("X-Name", "a\r\nX-Injected: 1")])
    return [b"body"]


def _says_close(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return _json(start_response, "bye", ("Connection", "close"), ("Transfer-Encoding", "chunked"))


def _until_gone(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Wait until the client hangs up, for a second or as many as are asked for."""
    for _ in range(100 * int(environ["QUERY_STRING"] or 1)):
        if environ["bunch.disconnected"]():
            _state["noticed"] += 1
            break
        gevent.sleep(0.01)
    return _json(start_response, "waited")


def _sleep(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    gevent.sleep(float(environ["QUERY_STRING"]))
    return _json(start_response, {"shutting_down": environ["bunch.shutting_down"](), "pid": os.getpid()})


def _until(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Create `PATH.here`, and answer once `PATH` exists."""
    path = Path(environ["QUERY_STRING"])
    path.with_suffix(".here").touch()
    while not path.exists():
        gevent.sleep(0.01)
    return _json(start_response, {"shutting_down": environ["bunch.shutting_down"](), "pid": os.getpid()})


def _block(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Block the whole process, as no application should."""
    signal.sigtimedwait([signal.SIGUSR2], 60)
    return _json(start_response, "awake")


def _cooperates(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Return whether the standard library's sleep, imported before the worker was forked, lets other greenlets run."""
    ran: list[int] = []
    gevent.spawn(ran.append, 1)
    time.sleep(0.01)
    return _json(start_response, bool(ran))


_ROUTES = {
    "/size": _size,
    "/no-length": _no_length,
    "/list": _list,
    "/empty": _empty,
    "/closing": _closing,
    "/events": _events,
    "/endless": _endless,
    "/write": _write,
    "/raises": _raises,
    "/raises-late": _raises_late,
    "/leaks-timeout": _leaks_timeout,
    "/exc-info": _exc_info,
    "/exc-info-late": _exc_info_late,
    "/twice": _twice,
    "/never-starts": _never_starts,
    "/short": _short,
    "/long": _long,
    "/split": _split,
    "/says-close": _says_close,
    "/until-gone": _until_gone,
    "/sleep": _sleep,
    "/until": _until,
    "/block": _block,
    "/cooperates": _cooperates,
}

app = App()
