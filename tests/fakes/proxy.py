"""A TCP proxy in front of Redis that can lose a reply: the server has done the work, the client never hears of it."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Forwards to `port` until `stop`. `url` is for the client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._sockets: list[socket.socket] = []
        self._victim = b""
        self.lost = 0

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def lose_reply_to(self, command: bytes) -> None:
        """To the next one that holds these bytes; its connection ends instead."""
        self._victim = command

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += (client, server)
                doomed = threading.Event()
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target, doomed), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, doomed: threading.Event) -> None:
        from_client = target.getpeername()[1] == self._port
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if from_client and self._victim and self._victim in data:
                    self._victim = b""
                    doomed.set()
                if not from_client and doomed.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
