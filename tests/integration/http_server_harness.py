"""A real gunicorn on a free port, and a client that sends exactly the bytes it is given."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cli.supervisor.ports import free_port
from tests.waiting import wait_until

_ROOT = Path(__file__).parents[2]
# Much longer than anything here takes: it turns a hang into a failure.
PATIENCE_S = 80.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Gone(Exception):
    """The server closed the connection where a response was due."""


class Client:
    """One connection. It reads responses strictly: one with an unclear end is a failure."""

    def __init__(self, port: int, unix_path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket
        if unix_path is None:
            plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE_S)
            self.socket.connect(str(unix_path))
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer(head=data.startswith(b"HEAD "))

    def get(self, path: str, *headers: str) -> Answer:
        return self.ask(get(path, *headers))

    def meets_a_stop(self) -> bool:
        """Ask once; return whether the server stops: it closes the connection after its answer, or has since the last
        one.
        """
        try:
            return self.get("/healthz").headers.get("connection") == "close"
        except (Gone, OSError):
            return True

    def answer(self, *, head: bool = False) -> Answer:
        """The next response; `head` when it answers a HEAD."""
        status_line, *lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, _reason = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} came twice"
            headers[name.lower()] = value
        if head or status in {"100", "204", "304"}:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            assert "content-length" not in headers
            body = b"".join(self.chunks())
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            assert headers.get("connection") == "close"
            body = self.rest()
        return Answer(int(status), headers, body)

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.until(b"\r\n"), 16):
            yield self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.exactly(2) == b"\r\n"

    def until(self, end: bytes) -> bytes:
        """The bytes before `end`, which is read too."""
        while end not in self._buffer:
            self._more()
        found, self._buffer = self._buffer.split(end, 1)
        return found

    def exactly(self, size: int) -> bytes:
        received = bytearray(self._buffer)
        while len(received) < size:
            received += self._received()
        self._buffer = bytes(received[size:])
        return bytes(received[:size])

    def rest(self) -> bytes:
        """Everything until the server closes, however it does."""
        with contextlib.suppress(Gone, ConnectionError):
            while True:
                self._more()
        found, self._buffer = self._buffer, b""
        return found

    def is_closed(self) -> bool:
        """Wait until the server closes the connection; return whether it sent nothing more."""
        return self.rest() == b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _more(self) -> None:
        self._buffer += self._received()

    def _received(self) -> bytes:
        data = self.socket.recv(65536)
        if not data:
            raise Gone(self._buffer)
        return data


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class Server:
    """gunicorn with the worker class under test. `limits` are ServerLimits fields, `tls` those of Settings, `trust` the
    context of its clients; `settings` are gunicorn's.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limits: dict[str, float] | None = None,
        unix_path: Path | None = None,
        tls: dict[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
        **settings: object,
    ) -> None:
        self._trust = trust
        self._log = folder / "gunicorn.log"
        self.port = free_port()
        settings = {
            "worker_class": "webapp.server.Worker",
            "bind": [f"127.0.0.1:{self.port}", *([f"unix:{unix_path}"] if unix_path else [])],
            "limit_request_line": 8190,
            "keepalive": 75,
            "graceful_timeout": 15,
            "control_socket_disable": True,
            **settings,
        }
        config = folder / "gunicorn.py"
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        config.write_text(
            "\n".join(lines)
            + "\nfrom config.front_tls import server_context\nfrom config.schema import Settings\n"
            + f"_tls = server_context(Settings(**{tls or {}!r}))\n"
            + "\ndef post_fork(server, worker):\n"
            + "    from webapp.http.limits import ServerLimits\n"
            + f"    worker.limits = ServerLimits(**{limits or {}!r})\n"
            + "    worker.tls = _tls\n"
        )
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "-c", str(config), "tests.integration.http_server_app:app"],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def client(self) -> Client:
        return Client(self.port, tls=self._trust)

    def state(self) -> dict[str, int]:
        """The application's counters; the request for them does not change them."""
        with self.client() as client:
            return dict(client.get("/state").json)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"gunicorn ended with {self.process.returncode}:\n{self.log}")
        try:
            self.state()
        except OSError:
            return False
        return True
