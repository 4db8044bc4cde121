"""The gRPC server's own rules over a real channel: who is let in, how a stream ends, what a bad message is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from config.tiers import Tier
from tasks.protocol.caller import Caller
from webapp.body_budget import BodyBudget
from webapp.errors import ApiError
from webapp.identity.base import Access
from webapp.request import HttpRequest

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")
health = pytest.importorskip("grpc_health.v1.health")

from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402 - needs gRPC's packages

from webapp.grpc import connections, service, strangers  # noqa: E402 - needs gRPC's packages
from webapp.grpc.proto import open_inference_pb2 as pb  # noqa: E402 - needs gRPC's packages

KNOWN = (("authorization", "Bearer a"),)
PATIENCE_S = 20
NOT_A_MESSAGE = b"\xff\xff\xff\xff"


class Identity:
    """Lets in whoever sends `authorization`."""

    def __init__(self) -> None:
        self.asked = 0
        self.addresses: list[str | None] = []

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        self.asked += 1
        self.addresses.append(call.header("REMOTE_ADDR"))
        if call.header("HTTP_AUTHORIZATION") is None:
            raise ApiError("UNAUTHENTICATED", "send a key")
        return Caller("a", "a", Tier.PAID)


class Thread:
    """The services without a thread."""

    def __init__(self) -> None:
        self.services = SimpleNamespace(identity=Identity(), tracer=None, large=BodyBudget(lambda _: 0.0))

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


class Rig:
    """A server whose `ModelInfer` echoes the id of its request, and a channel to it."""

    def __init__(self) -> None:
        self.parsed: list[Any] = []
        thread: Any = Thread()
        self.identity: Identity = thread.services.identity
        self.service = service.Service(thread, connections.Connections(PATIENCE_S))
        self.server = grpc.aio.server(interceptors=(strangers.Doorkeeper(thread),))
        self.server.add_generic_rpc_handlers((self.service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def infer(self, raw: bytes, metadata: Any = KNOWN) -> Any:
        return self.channel.unary_unary(f"/{service.SERVICE}/ModelInfer")(raw, metadata=metadata, timeout=PATIENCE_S)

    def stream(self, metadata: Any = KNOWN) -> Any:
        answer = pb.ModelStreamInferResponse.FromString
        method = self.channel.stream_stream(f"/{service.SERVICE}/ModelStreamInfer", response_deserializer=answer)
        return method(metadata=metadata, timeout=PATIENCE_S)

    def watch(self) -> Any:
        method = "/grpc.health.v1.Health/Watch"
        return self.channel.unary_stream(method, health_pb2.HealthCheckRequest.SerializeToString)(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
        )


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Rig], Awaitable[None]]], None]:
    """Run a test with a server."""

    async def run(test: Callable[[Rig], Awaitable[None]]) -> None:
        def echo(services: Any, call: HttpRequest, request: Any) -> Any:
            rig.parsed.append(request)
            if request.id == "wrong":
                raise ApiError("INVALID_INPUT", "n" * 50_000)
            return pb.ModelInferResponse(id=request.id)

        monkeypatch.setitem(service.METHODS, "ModelInfer", service.METHODS["ModelInfer"]._replace(work=echo))
        rig = Rig()
        await rig.server.start()
        try:
            await test(rig)
        finally:
            await rig.channel.close()
            await rig.server.stop(None)

    return lambda test: asyncio.run(run(test))


def message(id: str = "1") -> bytes:
    raw: bytes = pb.ModelInferRequest(model_name="m", id=id).SerializeToString()
    return raw


async def status(call: Any) -> Any:
    """The status of a call that ends, whatever it answers before."""
    return await asyncio.wait_for(call.code(), PATIENCE_S)


def test_a_stranger_is_refused_before_its_message_is_there(on: Any) -> None:
    async def test(rig: Rig) -> None:
        stream = rig.stream(None)
        assert await status(stream) is grpc.StatusCode.UNAUTHENTICATED
        # A unary method, and a caller who never sends its one message.
        silent = rig.channel.stream_unary(f"/{service.SERVICE}/ModelInfer")(timeout=PATIENCE_S)
        assert await status(silent) is grpc.StatusCode.UNAUTHENTICATED
        assert await status(rig.infer(NOT_A_MESSAGE, None)) is grpc.StatusCode.UNAUTHENTICATED
        assert await status(rig.infer(message())) is grpc.StatusCode.OK
        assert len(rig.parsed) == 1

    on(test)


def test_a_stranger_is_identified_with_its_address_by_which_guessing_is_slowed_down(on: Any) -> None:
    async def test(rig: Rig) -> None:
        assert await status(rig.infer(message(), None)) is grpc.StatusCode.UNAUTHENTICATED
        assert rig.identity.addresses == ["127.0.0.1"]

    on(test)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5B2001:db8::7%5D:5000", "2001:db8::7"),
        ("unix:/run/bunch.sock", ""),
        ("unix:", ""),
        ("", ""),
    ],
)
def test_the_address_is_in_the_name_of_a_peer(peer: str, address: str) -> None:
    assert strangers.address_of(peer) == address


def test_who_was_let_in_a_moment_ago_is_asked_once_and_by_the_method(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        for asked in (2, 3, 4):
            assert await status(rig.infer(message())) is grpc.StatusCode.OK
            assert rig.identity.asked == asked
        # Another credential does not profit from it.
        assert await status(rig.infer(message(), None)) is grpc.StatusCode.UNAUTHENTICATED
        assert len(rig.parsed) == 3

    monkeypatch.setattr(strangers, "_KNOWN_S", 60.0)
    on(test)


def test_a_message_that_is_none_is_an_invalid_argument_with_a_request_id(on: Any) -> None:
    async def test(rig: Rig) -> None:
        call = rig.infer(NOT_A_MESSAGE)
        assert await status(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert "no ModelInferRequest" in await call.details()
        assert dict(await call.trailing_metadata())["x-request-id"]

    on(test)


def test_a_message_that_is_none_ends_itself_and_not_its_stream(on: Any) -> None:
    async def test(rig: Rig) -> None:
        stream = rig.stream()
        for raw in (message("1"), NOT_A_MESSAGE, message("2")):
            await stream.write(raw)
        answers = [await stream.read() for _ in range(3)]
        assert [each.infer_response.id for each in answers] == ["1", "", "2"]
        assert "no ModelInferRequest" in answers[1].error_message
        await stream.done_writing()
        assert await status(stream) is grpc.StatusCode.OK

    on(test)


def test_a_stop_ends_streams_that_wait_for_their_callers(on: Any) -> None:
    async def test(rig: Rig) -> None:
        stream = rig.stream()
        await stream.write(message("1"))
        assert (await stream.read()).infer_response.id == "1"
        rig.service.stop()
        assert await status(stream) is grpc.StatusCode.UNAVAILABLE
        assert await status(rig.stream()) is grpc.StatusCode.UNAVAILABLE
        assert len(rig.parsed) == 1

    on(test)


def test_a_key_holds_half_of_the_streams_and_gives_them_back(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_STREAMS", 2)

    async def test(rig: Rig) -> None:
        first = rig.stream()
        await first.write(message("1"))
        await first.read()
        assert await status(rig.stream()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.done_writing()
        assert await status(first) is grpc.StatusCode.OK
        again = rig.stream()
        await again.write(message("2"))
        assert (await again.read()).infer_response.id == "2"

    on(test)


def test_streams_of_health_leave_room_for_requests(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MAX_PUBLIC_STREAMS", 1)

    async def test(rig: Rig) -> None:
        watching = rig.watch()
        assert await watching.read()
        assert await status(rig.watch()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await status(rig.infer(message())) is grpc.StatusCode.OK

    on(test)


@pytest.mark.parametrize("method", [f"/{service.SERVICE}/ServerLive", "/grpc.health.v1.Health/Check"])
def test_who_sends_no_message_to_a_public_method_takes_a_place_that_requests_do_not_need(
    on: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(strangers, "MAX_PUBLIC", 1)

    async def test(rig: Rig) -> None:
        ask = rig.channel.unary_unary(method)
        assert await status(ask(b"", timeout=PATIENCE_S)) is grpc.StatusCode.OK
        assert await status(ask(NOT_A_MESSAGE, timeout=PATIENCE_S)) in {
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
        }
        silent = rig.channel.stream_unary(method)(timeout=PATIENCE_S)
        await silent.wait_for_connection()
        async with asyncio.timeout(PATIENCE_S):
            while await status(ask(b"", timeout=PATIENCE_S)) is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                pass
        assert await status(rig.infer(message())) is grpc.StatusCode.OK
        silent.cancel()

    on(test)


def test_a_message_that_does_not_come_is_not_waited_for(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "_RECEIVE_S", 0.05)

    async def test(rig: Rig) -> None:
        silent = rig.channel.stream_unary("/grpc.health.v1.Health/Check")(timeout=PATIENCE_S)
        assert await status(silent) is grpc.StatusCode.INVALID_ARGUMENT

    on(test)


def test_one_key_for_all_requests_of_a_stream_is_refused(on: Any) -> None:
    async def test(rig: Rig) -> None:
        stream = rig.stream((*KNOWN, ("idempotency-key", "k")))
        assert await status(stream) is grpc.StatusCode.INVALID_ARGUMENT
        assert "use ModelInfer" in await stream.details()

    on(test)


def test_a_long_text_does_not_become_another_status(on: Any) -> None:
    async def test(rig: Rig) -> None:
        call = rig.infer(message("wrong"))
        assert await status(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert len(await call.details()) < 1000

    on(test)
