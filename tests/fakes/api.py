"""A fixed API in our own form, over a real socket: it answers each input twice itself (`2 * input`)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class DoublingApi(ThreadingHTTPServer):
    """Serves from `start` to `stop`. `seen` has the path, headers and body of each call."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str], Any]] = []

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: DoublingApi
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers.items()), body))
        self._answer(json.dumps({"outputs": [2 * each for each in body["inputs"]]}).encode())

    def do_HEAD(self) -> None:
        self.server.seen.append((self.path, dict(self.headers.items()), None))
        self._answer(b"")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
