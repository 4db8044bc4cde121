"""Single writes, races with the reaper, two listeners' turns: in this process, since nobody sees them from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from webapp.http.accept_balance import AcceptBalance
from webapp.http.connections import Connections
from webapp.http.limits import ServerLimits
from webapp.http.listener import Listener

_GET = b"GET /%b HTTP/1.1\r\nHost: test\r\n\r\n"


class _Writes:
    """The raw socket, with its `send` watched."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.sizes: list[int] = []

    def send(self, data: bytes) -> int:
        self.sizes.append(len(data))
        return int(self._raw.send(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _service(
    app: Callable[..., Any], on_change: Callable[[int], None], limits: ServerLimits | None = None
) -> Connections:
    return Connections(app, limits or ServerLimits(), access=None, on_request=lambda: None, on_change=on_change)


def _serve(app: Callable[..., Any], limits: ServerLimits | None = None) -> tuple[Any, _Writes, Connections]:
    ours, theirs = socket.socketpair()
    service = _service(app, lambda _: None, limits)
    service.open(ours, {"REMOTE_ADDR": ""})
    (connection,) = service._connections
    writes = connection._raw = _Writes(connection._raw)
    theirs.settimeout(20)
    return theirs, writes, service


def _receive(client: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(65536)
    return data


def _named(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"].encode()
    if path == b"/wait":
        gevent.sleep(0.2)
    start_response("200 OK", [("Content-Length", str(len(path)))])
    return [path]


def test_pipelined_responses_leave_together_and_in_order() -> None:
    client, writes, service = _serve(_named)
    client.sendall(b"".join(_GET % str(number).encode() for number in range(20)))
    gevent.sleep(0.05)
    received = client.recv(65536)
    assert [part.rpartition(b"\r\n\r\n/")[2] for part in received.split(b"HTTP/1.1 200 OK")[1:]] == [
        str(number).encode() for number in range(20)
    ]
    assert len(writes.sizes) == 1
    client.close()
    _wait_for_none(service)


def _wait_for_none(service: Connections) -> None:
    with gevent.Timeout(20):
        while len(service):
            gevent.sleep(0.005)


def test_but_none_waits_for_an_application_that_waits() -> None:
    go_on = Event()

    def held(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/held":
            go_on.wait()
        return _named(environ, start_response)

    client, writes, _ = _serve(held)
    client.sendall(_GET % b"a" + _GET % b"held")
    assert client.recv(65536).endswith(b"/a")
    assert len(writes.sizes) == 1
    go_on.set()
    assert client.recv(65536).endswith(b"/held")
    client.close()


def test_nor_do_they_pile_up() -> None:
    def large(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [bytes(40_000)]

    client, writes, _ = _serve(large)
    client.sendall((_GET % b"a") * 10)
    _receive(client, 10 * 40_000)
    assert max(writes.sizes) < 150_000
    client.close()


@pytest.mark.parametrize("path", [b"a", b"wait"])
def test_one_response_is_one_write(path: bytes) -> None:
    client, writes, _ = _serve(_named)
    client.sendall(_GET % path)
    client.recv(65536)
    assert len(writes.sizes) == 1
    client.close()


def test_a_request_that_crosses_the_idle_deadline_is_answered() -> None:
    client, _, service = _serve(_named)
    client.sendall(_GET % b"first")
    client.recv(65536)
    gevent.sleep(0)
    (connection,) = service._connections
    client.sendall(_GET % b"second")
    connection.deadline = 0.0
    # Before the loop looks at the socket.
    gevent.get_hub().loop.run_callback(service.reap)
    assert client.recv(65536).endswith(b"/second")
    client.close()


def test_one_that_still_sends_is_not_cut_off_because_the_process_stood_still() -> None:
    client, _, service = _serve(_named, ServerLimits(linger_s=0.05))
    client.sendall(b"rubbish\r\n\r\n")
    assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
    for data, left in ((b"more", 1), (b"", 0)):
        client.sendall(data)
        # Nothing else runs meanwhile: gevent has not patched this process.
        time.sleep(0.1)
        # Before the loop looks at the socket.
        gevent.get_hub().loop.run_callback(service.reap)
        gevent.sleep(0)
        assert len(service) == left
    client.close()


class TestListeners:
    def test_they_take_turns(self) -> None:
        board = AcceptBalance()
        listening = _listen()
        seats = [board.seat(number) for number in range(2)]
        services = [_service(_named, seat.publish) for seat in seats]
        for seat in [*seats, *seats]:
            seat.beat()
        clients = [socket.create_connection(listening.getsockname()) for _ in range(60)]
        listeners = [
            Listener(service, listening.dup(), {}, seat, cap=1000)
            for service, seat in zip(services, seats, strict=True)
        ]
        for listener in listeners:
            listener.resume()
        with gevent.Timeout(20):
            while sum(map(len, services)) < len(clients):
                gevent.sleep(0.005)
        assert min(map(len, services)) >= 25
        _close(clients, listeners, listening)

    def test_one_whose_others_are_stuck_takes_all(self) -> None:
        board = AcceptBalance()
        listening = _listen()
        seat, stuck = board.seat(0), board.seat(1)
        service = _service(_named, seat.publish)
        stuck.beat()
        seat.beat()
        clients = [socket.create_connection(listening.getsockname()) for _ in range(20)]
        listener = Listener(service, listening.dup(), {}, seat, cap=1000)
        listener.resume()
        with gevent.Timeout(20):
            while len(service) < len(clients):
                gevent.sleep(0.005)
        _close(clients, [listener], listening)


def _listen() -> Any:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def _close(clients: list[Any], listeners: list[Listener], listening: Any) -> None:
    for client in clients:
        client.close()
    for listener in listeners:
        listener.close()
    listening.close()
    gevent.sleep(0.05)
