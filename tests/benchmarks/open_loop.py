"""Open-loop load: requests arrive by their own clock (Poisson), independent of the answers.

A closed loop slows down with the system that it measures, so it sends few requests while that is slow. Here a latency
counts from the due time of the request, not from when it was sent, so a stall affects every request that was due in it
(no coordinated omission).

The generator is one thread around epoll, without asyncio: a request costs it a tenth of a millisecond less, which on
two cores is time of the system under test. `client` of the result says when it was the limit nevertheless.
"""

from __future__ import annotations

import errno
import random
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from urllib.parse import urlsplit

import httptools

from cli.loadgen.client_load import ClientLoad, judge
from cli.loadgen.summary import percentile
from tests.benchmarks import cores
from tests.benchmarks.shapes import SMALL_BYTES, Shape, Texts

# Arrivals that find them all busy wait for one; their latency counts from when they were due, as ever. Most are opened
# beforehand and used in turn: a burst of new ones overflows some systems' backlog, and those who share the work by
# connection need a share of them in each process.
MOST_CONNECTIONS = 256
# Fewer where they would be idle for so long that systems close them.
_LEAST_CONNECTIONS, _MOST_IDLE_S = 16, 0.25
_CONNECT_PAUSE_S = 0.001
_DRAIN_S = 10.0
# Due requests that are sent before answers are read again.
_AT_ONCE = 32


class TooFewAnswersError(Exception):
    """There were too few answers to speak of latencies."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of the requests with right answers, from when they were due.

    `late_ms` is the largest delay of the generator itself; `client` is the reason to distrust the figures, or None.
    """

    offered_rps: float
    answered: int
    failed: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    late_ms: float
    client: str | None = None


def arrivals(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    """Times from the start, in seconds, with exponential gaps: independent callers."""
    source = random.Random(seed)
    at = source.expovariate(rate)
    while at < duration_s:
        yield at
        at += source.expovariate(rate)


def ideal_p50_ms(due: Sequence[float], *, batch_s: float, max_batch_size: int) -> float:
    """The median latency of an ideal server without overhead: it takes all waiting requests as soon as the model is
    free.

    Most of the wait beyond the model's own time is for the batch that is running when the request comes. No batcher
    with one model can avoid that; the overhead of a real system is the rest above this.
    """
    latencies = []
    free_at = 0.0
    first = 0
    while first < len(due):
        start = max(free_at, due[first])
        end = first
        while end < len(due) and end - first < max_batch_size and due[end] <= start:
            end += 1
        free_at = start + batch_s
        latencies += [free_at - at for at in due[first:end]]
        first = end
    return median(latencies) * 1e3


def open_loop(
    base_url: str,
    shape: Shape,
    *,
    rate: float,
    duration_s: float,
    warmup_s: float = 0.0,
    payload_bytes: int = SMALL_BYTES,
    seed: int = 1,
) -> Latencies:
    """Offer `rate` requests/s for `warmup_s` and then `duration_s`, and wait for the last answers (at most 10 s).

    Requests that were due in the warm-up are not counted. Raises `TooFewAnswersError`.
    """
    loop = _Loop(base_url, shape, payload_bytes, warmup_s)
    with cores.on(cores.of_this_machine().client):
        load = ClientLoad()
        loop.connect(max(_LEAST_CONNECTIONS, round(rate * _MOST_IDLE_S)))
        loop.run(arrivals(rate, warmup_s + duration_s, seed))
        shares = load.shares()
    latencies, failed = sorted(loop.latencies_s), loop.failed
    if len(latencies) < 2:
        raise TooFewAnswersError(f"{len(latencies)} answers are too few to speak of latencies ({failed} failed)")
    late = sorted(loop.late_s) or [0.0]
    client = judge(*shares, percentile(late, 0.99) or 0.0, percentile(latencies, 0.5), 0)
    cuts = quantiles(latencies, n=100)
    return Latencies(
        rate, len(latencies), failed, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3, late[-1] * 1e3, client.limit
    )


class _Loop:
    """The connections, and the requests that wait for one."""

    def __init__(self, base_url: str, shape: Shape, payload_bytes: int, warmup_s: float) -> None:
        parts = urlsplit(base_url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._texts = Texts(secrets.token_hex(4), payload_bytes)
        body = shape.body(self._texts.of(0))
        bearer = f"Authorization: Bearer {shape.credential}\r\n" if shape.credential else ""
        self._head = (
            f"POST {shape.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{bearer}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        self._shape = shape
        self._counted_from_s = warmup_s
        self._epoll = select.epoll()
        self._open: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._waiting: deque[float] = deque()
        self._began = 0.0
        self._next = 0
        self.busy = 0
        self.failed = 0
        self.latencies_s: list[float] = []
        self.late_s: list[float] = []

    def connect(self, count: int) -> None:
        """Open so many connections before the first request, within the limit."""
        for _ in range(min(count, MOST_CONNECTIONS)):
            self._idle.append(self._opened())
            time.sleep(_CONNECT_PAUSE_S)

    def _opened(self) -> _Connection:
        connection = _Connection(self, self._epoll, self._address)
        self._open[connection.descriptor] = connection
        return connection

    def run(self, times: Iterator[float]) -> None:
        self._began = time.perf_counter() + 0.05
        upcoming = next(times, None)
        until = float("inf")
        try:
            while upcoming is not None or ((self.busy or self._waiting) and time.perf_counter() < until):
                for _ in range(_AT_ONCE):
                    now = time.perf_counter() - self._began
                    if upcoming is None or upcoming > now:
                        break
                    self.late_s.append(now - upcoming)
                    self._waiting.append(upcoming)
                    self._send()
                    upcoming = next(times, None)
                    if upcoming is None:
                        until = time.perf_counter() + _DRAIN_S
                pause = (until if upcoming is None else self._began + upcoming) - time.perf_counter()
                # epoll's own time limit is in whole milliseconds.
                if pause > 0 and (upcoming is not None or self.busy):
                    select.select([self._epoll], [], [], pause)
                for descriptor, events in self._epoll.poll(0):
                    if connection := self._open.get(descriptor):
                        connection.on(events)
                        self._send()
        finally:
            # Unanswered requests end as failures when their connections close, and none of these is used again.
            self.failed += sum(due >= self._counted_from_s for due in self._waiting)
            self._waiting.clear()
            for connection in list(self._open.values()):
                connection.close()
            self._epoll.close()

    def _send(self) -> None:
        """Send the requests that wait, the longest first, as far as there are connections for them."""
        while self._waiting and (self._idle or len(self._open) < MOST_CONNECTIONS):
            connection = self._idle.popleft() if self._idle else self._opened()
            text = self._texts.of(self._next)
            self._next += 1
            self.busy += 1
            connection.ask(self._waiting.popleft(), self._head + self._shape.body(text), b'"%b"' % text.encode())

    def on_end(self, connection: _Connection, due: float, *, right: bool) -> None:
        """A request has ended. Its connection is used again, unless it was closed.

        Nothing is sent here: one that fails at once would come back here, and with it the next, as deep as they wait.
        """
        self.busy -= 1
        if due >= self._counted_from_s:
            if right:
                self.latencies_s.append(time.perf_counter() - self._began - due)
            else:
                self.failed += 1
        if connection.descriptor in self._open:
            self._idle.append(connection)

    def on_close(self, connection: _Connection) -> None:
        del self._open[connection.descriptor]
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection:
    """One keep-alive connection, with one request at a time."""

    def __init__(self, loop: _Loop, epoll: select.epoll, address: tuple[str, int]) -> None:
        self._loop = loop
        self._epoll = epoll
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.descriptor = self._socket.fileno()
        self._socket.connect_ex(address)
        self._unsent = b""
        self._due: float | None = None
        self._expected = b""
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._epoll.register(self.descriptor, select.EPOLLIN)

    def ask(self, due: float, request: bytes, expected: bytes) -> None:
        self._due, self._expected, self._body = due, expected, []
        self._write(request)

    def _write(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ENOTCONN, errno.EINPROGRESS}:
                self.close()
                return
            sent = 0
        unsent = data[sent:]
        if bool(unsent) != bool(self._unsent):
            self._epoll.modify(self.descriptor, select.EPOLLIN | (select.EPOLLOUT if unsent else 0))
        self._unsent = unsent

    def on(self, events: int) -> None:
        if events & select.EPOLLOUT and self._unsent:
            self._write(self._unsent)
        if self.descriptor >= 0 and events & ~select.EPOLLOUT:
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
            if not data:
                self.close()
                return
            self._parser.feed_data(data)
        except BlockingIOError:
            return
        except (OSError, httptools.HttpParserError):
            self.close()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._due is None:
            return
        right = self._parser.get_status_code() == 200 and self._expected in b"".join(self._body)
        due, self._due = self._due, None
        if not self._parser.should_keep_alive():
            self.close()
        self._loop.on_end(self, due, right=right)

    def close(self) -> None:
        """Close it; a request that it has is failed."""
        if self.descriptor < 0:
            return
        self._loop.on_close(self)
        self._socket.close()
        self.descriptor = -1
        if self._due is not None:
            due, self._due = self._due, None
            self._loop.on_end(self, due, right=False)
