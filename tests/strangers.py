"""Clients that begin requests and do not finish them: they hold a connection as long as possible, and open another.

    python -m tests.strangers PORT COUNT SECONDS [AUTHORIZATION]

A third each sends nothing, stops in the middle of a large body, and sends a body in chunks of one byte. It prints as
JSON how many connections were open at once, and how often one was closed and opened again.
"""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import sys
import time

_BODY_BYTES = 1_000_000
_DRIBBLE_EVERY_S = 1.0
_WASTE = 65_536


def _head(fields: str, credential: str) -> bytes:
    authorization = f"Authorization: {credential}\r\n" if credential else ""
    lines = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\n{authorization}{fields}"
    return f"POST /v1/inference HTTP/1.1\r\n{lines}\r\n\r\n".encode()


class Stranger:
    """One client; `kind` is its number modulo three."""

    def __init__(self, port: int, kind: int, credential: str) -> None:
        self.kind = kind
        self.socket = socket.socket()
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(("127.0.0.1", port))
        self._unsent = memoryview(
            b"" if kind == 0
            else _head(f"Content-Length: {_BODY_BYTES}", credential) + b" " * (_BODY_BYTES - 1) if kind == 1
            else _head("Transfer-Encoding: chunked", credential)
        )  # fmt: skip

    def send(self) -> None:
        """Send as much of its beginning as the server accepts."""
        with contextlib.suppress(OSError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def dribble(self) -> None:
        if self.kind == 2 and not self._unsent:
            with contextlib.suppress(OSError):
                self.socket.send(b"1\r\na\r\n")

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection; its answer is read and dropped."""
        try:
            return not self.socket.recv(_WASTE)
        except BlockingIOError:
            return False
        except OSError:
            return True


def besiege(port: int, count: int, seconds: float, credential: str = "") -> dict[str, int]:
    """Run `count` of them for `seconds`. Returns `most_open` and `replaced`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 100)), hard))
    selector = selectors.DefaultSelector()
    until = time.monotonic() + seconds
    made = replaced = most_open = 0
    next_dribble = time.monotonic()
    while time.monotonic() < until:
        # Not all at once: a full backlog answers nobody.
        for _ in range(min(100, count - len(selector.get_map()))):
            stranger = Stranger(port, made % 3, credential)
            made += 1
            selector.register(stranger.socket, selectors.EVENT_READ, stranger)
        most_open = max(most_open, len(selector.get_map()))
        for key in list(selector.get_map().values()):
            key.data.send()
        if time.monotonic() >= next_dribble:
            next_dribble = time.monotonic() + _DRIBBLE_EVERY_S
            for key in list(selector.get_map().values()):
                key.data.dribble()
        for key, _ in selector.select(timeout=0.05):
            if key.data.is_closed():
                selector.unregister(key.fileobj)
                key.data.socket.close()
                replaced += 1
    return {"most_open": most_open, "replaced": replaced}


if __name__ == "__main__":
    print(json.dumps(besiege(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:5])))
