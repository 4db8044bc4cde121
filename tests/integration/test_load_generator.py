"""The load generator against small servers of the test's own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cli.loadgen.arrivals import Caller
from cli.loadgen.load import NO_ANSWER, Load, Run

Handler = Callable[..., Awaitable[tuple[int, bytes]]]


@asynccontextmanager
async def server(handler: Handler, *, close: bool = False) -> Any:
    """HTTP/1.1 in as few lines as the tests need; `close` ends each connection after its first answer."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                sent = json.loads(await reader.readexactly(length))
                status, body = await (handler(head, sent) if "x-tier" in head else handler(sent))
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n" % (status, len(body)))
                writer.write(b"Connection: close\r\n\r\n" if close else b"\r\n")
                writer.write(body)
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/inference"
    finally:
        listening.close()
        for writer in writers:
            writer.close()


def answer(batch_size: int = 1) -> bytes:
    return json.dumps({"output": 1, "metadata": {"batch_size": batch_size, "batch_id": "b"}}).encode()


def stall() -> None:
    """Hold up the generator as well, which shares the event loop: nothing can be sent meanwhile."""
    time.sleep(0.5)


def load(url: str, run: Run) -> Load:
    return Load(url, lambda number: json.dumps({"input": number}).encode(), 5.0, run)


def test_a_closed_loop_keeps_its_callers_busy_and_sends_each_number_once() -> None:
    seen: list[int] = []
    at_once = most = 0
    all_are_there = asyncio.Event()

    async def handler(body: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal at_once, most
        seen.append(body["input"])
        at_once += 1
        most = max(most, at_once)
        if at_once == 8:
            all_are_there.set()
        await asyncio.wait_for(all_are_there.wait(), 4.0)
        await asyncio.sleep(0.01)
        at_once -= 1
        return 200, answer(4)

    async def go() -> Run:
        run = Run()
        async with server(handler) as url:
            await load(url, run).closed(8, total=50)
        return run

    run = asyncio.run(go())
    assert sorted(seen) == list(range(50))
    assert most == 8
    assert {each.batch_size for each in run.answers} == {4}
    assert sorted(each.number for each in run.answers) == list(range(50))


def test_bodies_are_kept_with_their_numbers() -> None:
    async def handler(body: dict[str, Any]) -> tuple[int, bytes]:
        await asyncio.sleep(0.02 if body["input"] % 2 else 0)
        return 200, json.dumps({"output": body["input"]}).encode()

    async def go() -> Run:
        run = Run(keep_bodies=True)
        async with server(handler) as url:
            await load(url, run).closed(5, total=20)
        return run

    assert all(json.loads(each.body)["output"] == each.number for each in asyncio.run(go()).answers)


def test_connections_are_opened_again_when_the_server_closes_them() -> None:
    async def handler(_: dict[str, Any]) -> tuple[int, bytes]:
        return 200, answer()

    async def go() -> Run:
        run = Run()
        async with server(handler, close=True) as url:
            await load(url, run).closed(2, total=10)
        return run

    assert [each.status for each in asyncio.run(go()).answers] == [200] * 10


def test_refusals_and_dead_servers_are_counted_as_what_they_are() -> None:
    async def handler(_: dict[str, Any]) -> tuple[int, bytes]:
        return 429, b"{}"

    async def go() -> Run:
        run = Run()
        async with server(handler) as url:
            await load(url, run).closed(1, total=2)
        await load(url, run).closed(1, total=1)
        return run

    assert [each.status for each in asyncio.run(go()).answers] == [429, 429, NO_ANSWER]


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    """One stall of the server shows in every request that fell into it, sent or not."""

    async def handler(body: dict[str, Any]) -> tuple[int, bytes]:
        if body["input"] == 0:
            stall()
        return 200, answer()

    async def go() -> Run:
        run = Run()
        async with server(handler) as url:
            await load(url, run).open(200, duration_s=0.6)
        return run

    run = asyncio.run(go())
    assert sum(each.latency_s > 0.1 for each in run.answers) > 20


def test_an_open_loop_does_not_wait_for_answers() -> None:
    waiting = most = 0

    async def handler(_: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.3)
        waiting -= 1
        return 200, answer()

    async def go() -> None:
        async with server(handler) as url:
            await load(url, Run()).open(100, duration_s=0.5)

    asyncio.run(go())
    assert most > 5


def test_a_burst_arrives_at_once() -> None:
    """None of five waits for another: the server sees all of them before it has answered the first."""
    waiting = most = 0

    async def handler(body: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.05)
        waiting -= 1
        return 200, answer()

    async def go() -> Run:
        run = Run()
        async with server(handler) as url:
            await load(url, run).open(100, duration_s=0.5, burst=5)
        return run

    assert len(asyncio.run(go()).answers) % 5 == 0
    assert most >= 5


def test_callers_of_a_mix_send_their_own_headers_and_are_told_apart() -> None:
    seen: list[str] = []

    async def handler(head: str, body: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(head.split("x-tier: ")[1].split("\r\n", maxsplit=1)[0])
        return 200, answer()

    async def go() -> Run:
        run = Run()
        mix = [Caller("paid", {"X-Tier": "paid"}, 3), Caller("free", {"X-Tier": "free"}, 1)]
        async with server(handler) as url:
            await Load(url, lambda _: b"{}", 5.0, run, callers=mix).closed(4, total=400)
        return run

    run = asyncio.run(go())
    tiers = [each.tier for each in run.answers]
    assert sorted(tiers) == sorted(seen)
    assert 220 < tiers.count("paid") < 380


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a URL"):
        load("localhost", Run())
