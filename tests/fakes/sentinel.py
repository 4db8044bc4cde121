"""A sentinel that names one address whatever happens: for what real ones cannot do here, such as TLS."""

from __future__ import annotations

import socketserver
import threading
from typing import cast


class _Talk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            words = [self._word() for _ in range(int(line[1:]))]
            self.wfile.write(self._answer([word.upper() for word in words]))

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]

    def _answer(self, words: list[bytes]) -> bytes:
        host, port = cast("NamingSentinel", self.server).named
        if words[:2] == [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME"]:
            return _array(host, str(port))
        if words[:2] == [b"SENTINEL", b"MASTER"]:
            return _array("name", "main", "config-epoch", "1")
        return b"+OK\r\n"


class NamingSentinel(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, named: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.named = named
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


def _array(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each.encode()) for each in words)
