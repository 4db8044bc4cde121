"""One delivery, against sockets that misbehave, and over TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.allowed_hosts import CallbackHosts, Target
from tasks import pinned_connection
from tasks.callbacks.delivery import NotTaken, Unreachable, deliver
from tests.fakes.receiver import receiving
from tests.fakes.tls import Authority, TlsProxy

HOSTS = CallbackHosts("127.0.0.1, localhost")


@contextlib.contextmanager
def talking(act: Callable[[socket.socket], None]) -> Iterator[Target]:
    """A server that reads the request's head and then does `act`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65_536)
                act(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield HOSTS.target(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join(30)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 204 \r\nX: y\r\n\r\n",
        b"HTTP/1.1 299\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 201 Created\r\n\r\n",
    ],
)
def test_any_2xx_is_taken(answer: bytes) -> None:
    with talking(lambda connection: connection.sendall(answer)) as target:
        deliver(target, b"{}", [])


def test_another_status_is_told_with_what_the_receiver_asks_for() -> None:
    answer = b"HTTP/1.1 429 Slow\r\nServer: x\r\nretry-after: 17\r\n\r\n"
    with talking(lambda connection: connection.sendall(answer)) as target, pytest.raises(NotTaken) as caught:
        deliver(target, b"{}", [])
    assert (caught.value.status, caught.value.retry_after_s) == (429, 17)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n", "without an answer"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 600 No\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "longer than"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10, "without an answer"),
    ],
)
def test_what_is_no_answer_counts_as_none(answer: bytes, told: str) -> None:
    with talking(lambda connection: connection.sendall(answer)) as target, pytest.raises(Unreachable, match=told):
        deliver(target, b"{}", [])


def test_a_receiver_that_talks_for_ever_is_left_at_the_limit() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.02):
            connection.sendall(b"X")

    with talking(drip) as target:
        try:
            with pytest.raises(Unreachable, match="within"):
                deliver(target, b"{}", [], timeout_s=0.3)
        finally:
            over.set()


def test_an_address_that_swallows_everything_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    granted_s: list[float] = []

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        granted_s.append(timeout)
        if address[0] == "127.0.0.2":
            raise TimeoutError
        return connect(address, timeout)

    with receiving() as receiver:
        monkeypatch.setattr(socket, "create_connection", connected)
        target = HOSTS.target(f"http://localhost:{receiver.port}/")
        deliver(target, b"{}", [], timeout_s=60.0, resolve=lambda *_: ["127.0.0.2", "127.0.0.1"])
    first_s, second_s = granted_s
    assert first_s <= 30.0 < second_s


@contextlib.contextmanager
def fronted(port: int, authority: Authority) -> Iterator[TlsProxy]:
    proxy = TlsProxy(port, *authority.certificate("localhost"))
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def test_tls_is_verified(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    with receiving() as receiver, fronted(receiver.port, authority) as proxy:
        target = HOSTS.target(f"https://localhost:{proxy.port}/hook")
        with pytest.raises(Unreachable, match="certificate verify failed"):
            deliver(target, b"{}", [], tls=ssl.create_default_context(cafile=other.ca))
        deliver(target, b"{}", [("X-Y", "z")], tls=ssl.create_default_context(cafile=authority.ca))
        wrong = HOSTS.target(f"https://127.0.0.1:{proxy.port}/hook")
        with pytest.raises(Unreachable, match="certificate verify failed"):
            deliver(wrong, b"{}", [], tls=ssl.create_default_context(cafile=authority.ca))
    (sent,) = receiver.sent
    assert (sent.headers["host"], sent.headers["x-y"]) == (f"localhost:{proxy.port}", "z")


def test_the_systems_authorities_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    made: list[ssl.SSLContext] = []

    def make() -> ssl.SSLContext:
        made.append(context)
        return context

    monkeypatch.setattr(ssl, "create_default_context", make)
    pinned_connection._system_authorities.cache_clear()
    try:
        with receiving() as receiver, fronted(receiver.port, authority) as proxy:
            for _ in range(2):
                deliver(HOSTS.target(f"https://localhost:{proxy.port}/hook"), b"{}", [])
    finally:
        pinned_connection._system_authorities.cache_clear()
    assert len(made) == 1
