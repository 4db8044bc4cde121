"""A TCP proxy in front of Redis: it can lose a reply, cut connections, or let them go dead without a word."""

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
        self._links: list[_Link] = []
        self._victim = b""
        self.lost = 0

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def lose_reply_to(self, command: bytes) -> None:
        """To the next one that holds these bytes; its connection ends instead."""
        self._victim = command

    def cut(self) -> int:
        """End every connection; how many there were."""
        links, self._links = self._links, []
        for link in links:
            link.cut()
        return sum(not link.ended for link in links)

    def deaden(self) -> int:
        """Through the connections of now nothing goes any more, and neither end is told; new ones are well."""
        living = [link for link in self._links if not link.ended]
        for link in living:
            link.dead = True
        return len(living)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                link = _Link(client, server)
                self._links = [*(each for each in self._links if not each.ended), link]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(link, source, target), daemon=True).start()

    def _forward(self, link: _Link, source: socket.socket, target: socket.socket) -> None:
        from_client = target is link.server
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if from_client and self._victim and self._victim in data:
                    self._victim = b""
                    link.doomed = True
                if not from_client and link.doomed:
                    self.lost += 1
                    break
                if not link.dead:
                    target.sendall(data)
        link.ended = True
        link.cut()


class _Link:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.server = server
        self._sockets = (client, server)
        self.doomed = False
        self.dead = False
        self.ended = False

    def cut(self) -> None:
        # A thread may be reading from it: closing would give its number away under that thread's hands.
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
