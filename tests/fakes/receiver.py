"""A receiver of callbacks: a real HTTP server that answers as it is told, and remembers what it was sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cli.supervisor.ports import free_port

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Sent:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`statuses` are given in turn, the last one for ever; while `hangs` is set, nothing is answered."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    hangs: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    # Two that come at once would take two of two, and leave none for ever.
    _giving: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=s3cret"

    def status(self) -> int:
        with self._giving:
            return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@contextlib.contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A receiver on that port; zero: a free one, which nobody else gets after it."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            names = {name.lower(): value for name, value in self.headers.items()}
            receiver.sent.append(Sent(self.path, names, body))
            if receiver.hangs.is_set():
                receiver.released.wait(PATIENCE_S)
                return
            self.send_response(receiver.status())
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port or free_port()), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
