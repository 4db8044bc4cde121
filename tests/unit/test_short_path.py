"""A connection whose requests are served in the event loop, over a pair of sockets in this process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import gevent
import pytest
from gevent import socket

from webapp.http.connections import Connections
from webapp.http.limits import ServerLimits
from webapp.http.response import plain_response
from webapp.http.short_path import LoopChannel

MOST = 1024


class Exchange:
    """Answered in the next round of the loop, with `size` bytes that end in `short`."""

    def __init__(self, channel: LoopChannel, size: int) -> None:
        answer = plain_response("200 OK", [("Content-Length", str(size))], b"short".rjust(size))
        gevent.get_hub().loop.run_callback(channel.answer, answer)

    def abandon(self) -> None:
        """Nothing is kept."""


class Short:
    """Takes every request of a connection."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.environ = environ
        self.size = 5

    def take(self, body: bytes, channel: LoopChannel) -> Exchange:
        return Exchange(channel, self.size)


def whole(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"whole"]


class Served:
    """One connection, and its client's end."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Short]] = []
        limits = ServerLimits(body_bytes=MOST, arriving_bytes=4 * MOST, linger_s=0, drain_idle_s=0)
        self.connections = Connections(
            whole, limits, access=None, on_request=lambda: None, on_change=lambda _: None, short_path=self._make
        )
        ours, self.client = socket.socketpair()
        self.client.settimeout(30)
        base = {"REMOTE_ADDR": "", "wsgi.url_scheme": "http", "SCRIPT_NAME": ""}
        self.connections.open(ours, base)

    def _make(self, environ: dict[str, Any]) -> Short:
        made = Short(environ)
        self.made.append(weakref.ref(made))
        return made

    def ask(self, size: int) -> bytes:
        """The answer to a request with a body of `size` bytes."""
        self.client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (size, b"x" * size))
        answer: bytes = self.client.recv(65536)
        return answer


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    # The second head is kept, since the connection goes on.
    assert [made.ask(5)[-5:] for _ in range(3)] == [b"whole", b"whole", b"short"]
    yield made
    made.client.close()
    made.connections.kill(5)


def test_a_body_over_the_limit_is_refused_as_ever(served: Served) -> None:
    assert served.ask(MOST).endswith(b"short")
    assert served.ask(MOST + 1).startswith(b"HTTP/1.1 413 ")


def test_an_answer_that_is_under_way_when_the_server_stops_is_whole(served: Served) -> None:
    short = served.made[0]()
    assert short is not None
    # More than the buffers of both ends hold.
    short.size = 8_000_000
    received = served.ask(5)
    served.connections.begin_shutdown()
    gevent.get_hub().loop.run_callback(served.connections.reap)
    while not received.endswith(b"short"):
        more = served.client.recv(1 << 20)
        assert more, "the answer was cut short"
        received += more


def test_a_closed_connection_leaves_nothing_to_the_garbage_collector(served: Served) -> None:
    [short] = served.made
    assert short() is not None
    gc.disable()
    try:
        served.client.close()
        while len(served.connections):
            gevent.sleep(0)
        # The greenlet ends after that.
        gevent.sleep(0)
        assert short() is None
    finally:
        gc.enable()
