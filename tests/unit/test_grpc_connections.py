"""Clients leave a gRPC server by the age of their connections, and a stop waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from webapp.grpc import connections  # noqa: E402 - needs gRPC's packages
from webapp.grpc.connections import Connections  # noqa: E402 - needs gRPC's packages

PATIENCE_S = 20
LIFE_S = 15.0


class Clock:
    """A time that passes only while somebody sleeps, in steps of a tenth of a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.each_step: Any = lambda: None

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        until = self.now + delay_s
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.each_step()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(connections, "monotonic", clock.monotonic)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", clock.sleep)
        yield clock


def test_a_client_moves_to_a_new_connection_at_the_age_of_its_old_one_and_no_call_fails() -> None:
    async def test() -> None:
        peers = set()

        async def answer(message: bytes, context: Any) -> bytes:
            peers.add(context.peer())
            return message

        server = grpc.aio.server(options=(Connections(0.2).option,))
        methods = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with asyncio.timeout(PATIENCE_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            while len(peers) < 3:
                # A call that fails raises.
                await asyncio.gather(*(channel.unary_unary("/a.Service/Echo")(b"") for _ in range(8)))
        await server.stop(None)

    asyncio.run(test())


def test_a_stop_waits_for_nobody_where_nobody_calls(clock: Clock) -> None:
    each = Connections(LIFE_S)
    asyncio.run(each.leave())
    assert clock.now == 0
    each.called("ipv4:127.0.0.1:1")
    asyncio.run(each.leave())
    assert clock.now == pytest.approx(1)
    asyncio.run(each.leave())
    assert clock.now == pytest.approx(1)


def test_a_stop_waits_until_the_newest_connection_has_its_age(clock: Clock) -> None:
    each = Connections(LIFE_S)
    each.called("ipv4:127.0.0.1:1")
    clock.now = 5.0
    each.called("ipv4:127.0.0.1:2")
    clock.now = 9.0
    clock.each_step = lambda: each.called("ipv4:127.0.0.1:1")
    each.called("ipv4:127.0.0.1:1")
    asyncio.run(each.leave())
    assert clock.now == pytest.approx(5 + LIFE_S)


def test_a_stop_ends_although_clients_come_back(clock: Clock) -> None:
    each = Connections(LIFE_S)
    each.called("ipv4:127.0.0.1:1")
    clock.each_step = lambda: each.called(f"ipv4:127.0.0.1:{round(clock.now * 10)}")
    asyncio.run(each.leave())
    assert clock.now == pytest.approx(LIFE_S)


def test_connections_beyond_their_age_are_forgotten(clock: Clock) -> None:
    each = Connections(LIFE_S)
    for clock.now in range(1000):
        each.called(f"ipv4:127.0.0.1:{clock.now}")
    assert len(each._since) <= LIFE_S + 2
