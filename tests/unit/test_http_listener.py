"""The listener's pauses, on a real event loop: each lasts its whole time, the second as well as the first."""

from __future__ import annotations

import socket
import time

from gevent import socket as gevent_socket
from gevent.event import Event

from webapp.http import listener
from webapp.http.accept_balance import AcceptBalance


class Service:
    """As far as the listener can tell, an HTTP service that has no connections."""

    def __init__(self, accepted: list[float]) -> None:
        self._accepted = accepted
        self.opened = Event()

    def __len__(self) -> int:
        return 0

    def open(self, sock: socket.socket, base: dict[str, object]) -> None:
        self._accepted.append(time.monotonic())
        self.opened.set()
        sock.close()


def test_a_crowded_worker_lets_the_others_go_first_again_and_again(monkeypatch) -> None:
    monkeypatch.setattr(listener, "_YIELD_S", 0.02)
    board = AcceptBalance()
    seat, other = board.seat(1), board.seat(2)
    for each in (seat, other):
        each.beat()
    seat.beat()
    seat.publish(100)
    listening = gevent_socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(8)
    accepted: list[float] = []
    service = Service(accepted)
    subject = listener.Listener(service, listening, {}, seat, cap=10)
    client = socket.create_connection(listening.getsockname())
    try:
        for _ in range(2):
            started = time.monotonic()
            client.close()
            client = socket.create_connection(listening.getsockname())
            subject.resume()
            assert service.opened.wait(10)
            assert accepted[0] - started >= 0.9 * listener._YIELDS * 0.02
            accepted.clear()
            while subject._accept():
                accepted.clear()
            service.opened.clear()
    finally:
        client.close()
        subject.close()
