"""Callers that upload large bodies, each over a connection that it keeps."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Upload:
    """A request."""

    path: str
    media_type: str
    body: bytes
    # What its answer must have in it, without spaces.
    answer: str


class Caller:
    """One kept connection."""

    def __init__(self, port: int, upload: Upload) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        head = f"POST {upload.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {upload.media_type}\r\n"
        self._head = f"{head}Content-Length: {len(upload.body)}\r\n\r\n".encode()
        self._body = upload.body

    def send(self) -> str:
        """The body of the answer to one request. Raises OSError, also for another status than 200."""
        self._socket.sendall(self._head)
        self._socket.sendall(self._body)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._more()
        head, _, body = got.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(lines.get(b"content-length", b"0")):
            body += self._more()
        if b" 200 " not in head[:16]:
            raise OSError(f"{head.splitlines()[0]!r} {body[:200]!r}")
        return body.decode()

    def _more(self) -> bytes:
        more = self._socket.recv(65536)
        if not more:
            raise OSError("the connection was closed")
        return more

    def close(self) -> None:
        self._socket.close()


class Crowd:
    """Callers that each send the next request once the last one is answered."""

    def __init__(self, port: int, upload: Upload, connections: int) -> None:
        self._port, self._upload, self._connections = port, upload, connections
        self.latencies_s: list[float] = []
        self.errors: list[str] = []

    def run(self, duration_s: float) -> float:
        """Returns the seconds until the last was answered."""
        began = time.perf_counter()
        until = began + duration_s
        threads = [threading.Thread(target=self._call, args=(until,)) for _ in range(self._connections)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return time.perf_counter() - began

    def _call(self, until: float) -> None:
        try:
            caller = Caller(self._port, self._upload)
            while (sent_at := time.perf_counter()) < until:
                answer = caller.send()
                if self._upload.answer not in answer.replace(" ", ""):
                    raise OSError(f"a wrong answer: {answer[:200]}")
                self.latencies_s.append(time.perf_counter() - sent_at)
            caller.close()
        except OSError as error:
            self.errors.append(str(error))
