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
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._serving: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self._victim = b""
        self.lost = 0

    def start(self) -> None:
        self._accepting.start()

    def stop(self) -> None:
        _hang_up(self._listener)
        self._accepting.join(10)
        self._listener.close()
        for each in tuple(self._sockets):
            _hang_up(each)
        for thread in self._serving:
            thread.join(10)

    def lose_reply_to(self, command: bytes) -> None:
        """To the next one that holds these bytes; its connection ends instead."""
        self._victim = command

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.add(client)
                self._serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._serving[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            self._sockets.add(server)
            doomed = threading.Event()
            replies = threading.Thread(target=self._reply, args=(server, client, doomed), daemon=True)
            replies.start()
            with contextlib.suppress(OSError):
                while data := client.recv(1 << 16):
                    if self._victim and self._victim in data:
                        self._victim = b""
                        doomed.set()
                    server.sendall(data)
            _hang_up(server)
            replies.join(10)
        self._sockets -= {client, server}

    def _reply(self, server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if doomed.is_set():
                    self.lost += 1
                    break
                client.sendall(data)
        _hang_up(client)


def _hang_up(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
