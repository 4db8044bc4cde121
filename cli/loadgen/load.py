"""A load generator on raw sockets: closed loop (a number of callers) or open loop (a rate of requests).

In the open loop the latency of a request counts from its due time, not from when it was sent; otherwise a server that
stalls would hide the requests that it delayed ("coordinated omission"). `service_s` counts from when it was sent.
"""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import httptools
import msgspec

from cli.loadgen.arrivals import Arrivals, Caller, cast
from config.auth import is_loopback

# The status of a connection that could not be opened, or broke: no answer came.
NO_ANSWER = 0
_CONNECT_PAUSE_S = 0.1
# Later than any deadline of the server, within which it would have answered.
_ANSWER_MARGIN_S = 10.0
# Failures of the client alone: the server never saw these requests.
_OUT_OF_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS})

# From the number of a request, starting at 0, to its JSON body.
MakeBody: TypeAlias = Callable[[int], bytes]


class _Metadata(msgspec.Struct):
    batch_size: int = 0
    batch_id: str = ""


class _Body(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_decode_body = msgspec.json.Decoder(_Body).decode


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request. `finished_s` counts from the start of the run."""

    number: int
    status: int
    latency_s: float
    finished_s: float
    batch_size: int = 0
    batch_id: str = ""
    body: bytes = b""
    tier: str = ""
    service_s: float = 0.0


@dataclass(slots=True)
class Run:
    """The results of a load. `keep_bodies` keeps every body, for a run whose answers are checked.

    `refusals` are the first body of each status but 200.
    """

    keep_bodies: bool = False
    answers: list[Answer] = field(default_factory=list)
    refusals: dict[int, bytes] = field(default_factory=dict)
    elapsed_s: float = 0.0
    waiting: int = 0
    out_of_sockets: int = 0

    def add(
        self,
        number: int,
        status: int,
        body: bytes,
        latency_s: float,
        finished_s: float,
        tier: str = "",
        service_s: float | None = None,
    ) -> None:
        size, batch_id = 0, ""
        if status == 200:
            try:
                metadata = _decode_body(body).metadata
            except msgspec.MsgspecError:
                status = NO_ANSWER
            else:
                size, batch_id = metadata.batch_size, metadata.batch_id
        else:
            self.refusals.setdefault(status, body)
        kept = body if self.keep_bodies else b""
        service_s = latency_s if service_s is None else service_s
        self.answers.append(Answer(number, status, latency_s, finished_s, size, batch_id, kept, tier, service_s))
        self.elapsed_s = max(self.elapsed_s, finished_s)


class Load:
    """Requests to one URL.

    Args:
        timeout_s: the deadline that each request is sent with.
        callers: kinds of callers, drawn by weight.
    """

    def __init__(
        self,
        url: str,
        make_body: MakeBody,
        timeout_s: float,
        run: Run,
        callers: Sequence[Caller] = (Caller(),),
    ) -> None:
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"{url!r} is not a URL")
        self._tls = _tls_towards(parts.hostname) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        fixed = {"Host": parts.netloc, "Content-Type": "application/json", "X-Timeout-Ms": round(timeout_s * 1000)}
        self._heads = [
            "\r\n".join(
                [
                    f"POST {parts.path or '/'} HTTP/1.1",
                    *(f"{name}: {value}" for name, value in {**fixed, **each.headers}.items()),
                    "",
                ]
            ).encode()
            for each in callers
        ]
        self._tiers = [each.tier for each in callers]
        self._source = random.Random()
        self._cast = cast(callers, self._source)
        self._make_body = make_body
        self._patience_s = timeout_s + _ANSWER_MARGIN_S
        self._run = run
        self._began = 0.0
        self._next = 0

    async def closed(self, callers: int, *, duration_s: float = float("inf"), total: int | None = None) -> None:
        """Run `callers` connections, each sending its next request when the last one is answered."""
        self._began = time.perf_counter()
        self._next = 0

        async def caller() -> None:
            connection = _Connection()
            while time.perf_counter() - self._began < duration_s and (total is None or self._next < total):
                await self._one(connection, self._take(), time.perf_counter())
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())

    async def open(self, rps: float, *, duration_s: float, burst: int = 1) -> None:
        """Send Poisson arrivals at `rps` (`burst` at once), each on a connection of its own while it waits."""
        await self.at(Arrivals(rps, burst).times(duration_s, self._source))

    async def at(self, due_s: Iterable[float]) -> None:
        """Send one request at each of these times, in ascending seconds from the start."""
        self._began = time.perf_counter()
        idle: list[_Connection] = []
        waiting: set[asyncio.Task[None]] = set()

        async def one(due: float) -> None:
            connection = idle.pop() if idle else _Connection()
            await self._one(connection, self._take(), due)
            idle.append(connection)

        for due in (self._began + each for each in due_s):
            # When behind schedule, requests are sent without a pause until the generator has caught up.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(one(due))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
        for connection in idle:
            connection.close()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    async def _one(self, connection: _Connection, number: int, due: float) -> None:
        caller = self._cast[number % len(self._cast)]
        body = self._make_body(number)
        head = self._heads[caller]
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        run = self._run
        run.waiting += 1
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience_s):
                status, answer = await connection.ask(self._host, self._port, request, self._tls)
        except (OSError, TimeoutError) as error:
            connection.close()
            status, answer = NO_ANSWER, b""
            run.out_of_sockets += isinstance(error, OSError) and error.errno in _OUT_OF_SOCKETS
            await asyncio.sleep(_CONNECT_PAUSE_S)
        finally:
            run.waiting -= 1
        now = time.perf_counter()
        run.add(number, status, answer, now - due, now - self._began, self._tiers[caller], now - sent)


def _tls_towards(host: str) -> ssl.SSLContext:
    """The context for a server. On loopback its certificate is not verified: that is rarely one for this name."""
    context = ssl.create_default_context()
    if is_loopback(host):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time; it is opened, and reopened, when needed."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._body: list[bytes] = []

    async def ask(self, host: str, port: int, request: bytes, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, host, port, ssl=tls)
        assert self._transport is not None
        self._answer = loop.create_future()
        self._parser, self._body = httptools.HttpResponseParser(self), []
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("connection closed before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))
        if not self._parser.should_keep_alive():
            self.close()
