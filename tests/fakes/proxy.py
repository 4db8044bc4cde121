"""A TCP proxy in front of Redis: it can lose a reply, cut connections, or silently stop forwarding."""

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
        self._links: set[_Link] = set()
        self._victim = b""
        self.lost = 0

    def start(self) -> None:
        self._accepting.start()

    def stop(self) -> None:
        _hang_up(self._listener)
        self._accepting.join(10)
        self._listener.close()
        self.cut()
        for thread in self._serving:
            thread.join(10)

    def lose_reply_to(self, command: bytes) -> None:
        """Lose the reply to the next command that contains these bytes; its connection ends instead."""
        self._victim = command

    def cut(self) -> int:
        """End every connection; returns how many there were."""
        links = tuple(self._links)
        for link in links:
            link.cut()
        return len(links)

    def deaden(self) -> int:
        """Silently stop forwarding on all current connections; new ones work."""
        links = tuple(self._links)
        for link in links:
            link.dead = True
        return len(links)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._serving[-1].start()

    def _serve(self, client: socket.socket) -> None:
        """Forward one connection to its end; the replies have a thread beside this one."""
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
            link = _Link(client, server)
            self._links.add(link)
            replies = threading.Thread(target=self._reply, args=(link,), daemon=True)
            replies.start()
            self._ask(link)
            link.cut()
            replies.join(10)
            self._links.discard(link)

    def _ask(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(1 << 16):
                if self._victim and self._victim in data:
                    self._victim = b""
                    link.doomed = True
                if not link.dead:
                    link.server.sendall(data)

    def _reply(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.server.recv(1 << 16):
                if link.doomed:
                    self.lost += 1
                    break
                if not link.dead:
                    link.client.sendall(data)
        link.cut()


class _Link:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.doomed = False
        self.dead = False

    def cut(self) -> None:
        # Not closed: a thread may be reading, and the descriptor's number would be reused.
        _hang_up(self.client)
        _hang_up(self.server)


def _hang_up(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
