"""The gRPC role beside the stack: the same requests, rules and batches, in the protocol's messages."""

from __future__ import annotations

import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from cli.supervisor.ports import free_port
from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import Stack
from tests.e2e.test_rubbish import pushed
from tests.waiting import PATIENCE_S, wait_until

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")

from webapp.grpc.proto import open_inference_pb2 as pb  # noqa: E402 - needs gRPC's packages
from webapp.grpc.service import SERVICE  # noqa: E402 - needs gRPC's packages


class Channel:
    """Calls of one channel. `ask` returns the answer, `start` a call that can be cancelled."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def ask(self, method: str, request: Any, answer: Any, **metadata: str) -> Any:
        return self._method(method, answer)(request, timeout=PATIENCE_S, metadata=rows(metadata))

    def infer(self, model: str, *inputs: Any, timeout: float = PATIENCE_S, **more: Any) -> Any:
        request = pb.ModelInferRequest(model_name=model, inputs=inputs, **more)
        return self._method("ModelInfer", pb.ModelInferResponse)(request, timeout=timeout)

    def start(self, model: str, *inputs: Any, **metadata: str) -> Any:
        request = pb.ModelInferRequest(model_name=model, inputs=inputs)
        return self._method("ModelInfer", pb.ModelInferResponse).future(request, metadata=rows(metadata))

    def raw(self, message: bytes) -> Any:
        """`ModelInfer` with bytes that may be no message."""
        return self._channel.unary_unary(f"/{SERVICE}/ModelInfer")(message, timeout=PATIENCE_S)

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        method = f"/{SERVICE}/ModelStreamInfer"
        answer = pb.ModelStreamInferResponse.FromString
        yield from self._channel.stream_stream(method, pb.ModelInferRequest.SerializeToString, answer)(requests)

    def health(self, service: str) -> int:
        method, check = "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2.HealthCheckResponse.FromString
        return self._channel.unary_unary(method, type(check).SerializeToString, answer)(check).status

    def close(self) -> None:
        self._channel.close()

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}", lambda request: request.SerializeToString(), answer.FromString
        )


def rows(metadata: dict[str, str]) -> list[tuple[str, str]]:
    return [(name.replace("_", "-"), value) for name, value in metadata.items()]


def texts(*values: str) -> Any:
    contents = pb.InferTensorContents(bytes_contents=[each.encode() for each in values])
    return tensor("input", "BYTES", [len(values)], contents=contents)


def tensor(name: str, datatype: str, shape: list[int], **more: Any) -> Any:
    return pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, **more)


@pytest.fixture(scope="module")
def role(stack: Stack) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and its port."""
    port = free_port()
    process = stack.spawn("grpc", f"--config={stack.config_file}", grpc_port=port, redis_url=stack.redis_url)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def channel(role: tuple[subprocess.Popen[bytes], int]) -> Iterator[Channel]:
    process, port = role
    channel = Channel(port)

    def is_ready() -> bool:
        assert process.poll() is None
        try:
            return bool(channel.ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready)
        except grpc.RpcError:
            return False

    wait_until(is_ready, what="the role is ready")
    yield channel
    channel.close()


def refusal(ask: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as refused:
        ask()
    return refused.value


def test_rows_go_in_as_contents_or_raw_and_come_out_raw(channel: Channel) -> None:
    answer = channel.infer("echo", texts("a", "é"), id="mine")
    assert (answer.model_name, answer.id, list(answer.outputs[0].shape)) == ("echo", "mine", [2])
    assert list(answer.raw_output_contents) == [b"\1\0\0\0a\2\0\0\0" + "é".encode()]
    raw = [struct.pack("<4f", 1, 2, 3, 4), b"\1\0\0\0x\0\0\0\0"]
    inputs = tensor("a", "FP32", [2, 2]), tensor("b", "BYTES", [2])
    answer = channel.infer("tensors", *inputs, raw_input_contents=raw)
    assert list(answer.raw_output_contents) == raw
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="b")
    answer = channel.infer("tensors", *inputs, raw_input_contents=raw, outputs=[wanted])
    assert list(answer.raw_output_contents) == raw[1:]


def test_requests_of_both_doors_share_a_batch(channel: Channel, api: Api) -> None:
    # Four requests are one batch, however far apart they arrive.
    model = "quartet"
    waiting = [api.soon(number, model) for number in range(3)]
    answer = channel.infer(model, texts("last"))
    assert b'"batch":4' in answer.raw_output_contents[0]
    assert [each.result(PATIENCE_S).json["output"]["batch"] for each in waiting] == [4, 4, 4]


@pytest.mark.parametrize(
    ("ask", "status", "says"),
    [
        (lambda c: c.infer("nothing", texts("a")), "NOT_FOUND", "there is no model"),
        (lambda c: c.infer("echo", texts("a"), model_version="7"), "NOT_FOUND", "no version"),
        (lambda c: c.infer("echo", tensor("x", "FP32", [1])), "INVALID_ARGUMENT", "1"),
        (
            lambda c: c.infer("echo", texts("a"), raw_input_contents=[b"\1\0\0\0a"]),
            "INVALID_ARGUMENT",
            "one of the two",
        ),
        (lambda c: c.infer("tensors", texts("a")), "INVALID_ARGUMENT", "there is no input 'input'"),
        (lambda c: c.infer("slow", texts("a"), timeout=0.2), "DEADLINE_EXCEEDED", ""),
        (
            lambda c: c.ask(
                "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="echo"), pb.ModelConfig
            ),
            *("INVALID_ARGUMENT", "manage.py pause echo"),
        ),
        (lambda c: c.infer("echo", texts("x" * 2_000_000)), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_errors_are_statuses_with_the_text(
    channel: Channel, ask: Callable[[Channel], Any], status: str, says: str
) -> None:
    error = refusal(lambda: ask(channel))
    assert (error.code().name, says in error.details()) == (status, True), error


def test_rubbish_is_an_invalid_argument_and_queues_nothing(channel: Channel, store: Redis) -> None:
    before = pushed(store)
    messages = [
        pb.ModelInferRequest(model_name="echo", inputs=[tensor("input", "BYTES", shape)], raw_input_contents=[raw])
        for shape, raw in (
            ([1], b"\x09\0\0\0a"),
            ([1], b"\xff\xff\xff\xff"),
            ([1], b"\1\0\0\0\xff"),
            ([2], b"\1\0\0\0a"),
            ([2**63 - 1], b"\1\0\0\0a"),
            ([1, 2**32, 2**31], b"\1\0\0\0a"),
            ([-1], b"\1\0\0\0a"),
            ([], b"\1\0\0\0a"),
        )
    ]
    for raw in (*(each.SerializeToString() for each in messages), b"\xff\xff\xff\xff", b"\x0a\xff"):
        error = refusal(lambda raw=raw: channel.raw(raw))
        assert (error.code().name, bool(error.details())) == ("INVALID_ARGUMENT", True), raw
        assert dict(error.trailing_metadata())["bunch-error"] in {"INVALID_INPUT", "INVALID_JSON"}
    assert pushed(store) == before


def test_our_code_and_the_request_id_come_with_a_status(channel: Channel) -> None:
    error = refusal(lambda: channel.start("nothing", texts("a"), x_request_id="call-7").result())
    told = dict(error.trailing_metadata())
    assert (told["bunch-error"], told["x-request-id"]) == ("UNKNOWN_MODEL", "call-7")


def test_a_stream_answers_in_order_and_outlives_errors(channel: Channel) -> None:
    requests = [
        pb.ModelInferRequest(
            model_name="nothing" if number == 3 else "echo", id=str(number), inputs=[texts(str(number))]
        )
        for number in range(8)
    ]
    answers = list(channel.stream(iter(requests)))
    assert [each.infer_response.id for each in answers] == [str(number) for number in range(8)]
    assert [bool(each.error_message) for each in answers] == [number == 3 for number in range(8)]


def test_what_a_client_cancels_while_it_waits_is_not_computed(
    channel: Channel, api: Api, gate: Gate, store: Redis
) -> None:
    gate.occupy()
    call = channel.start("moody", texts("mine"), x_request_id="left-early")
    wait_until(lambda: api.get("/internal/requests/left-early").status == 200, what="it is queued")
    life = api.get("/internal/requests/left-early").json
    assert life["status"] == "queued"
    call.cancel()
    wait_until(lambda: store.zscore("bunch:cancelled", life["task_id"]), what="it is noticed")
    gate.open()
    life = wait_until(lambda: ended(api, "left-early"), what="it has ended")
    assert life["error"]["error"] == "CANCELLED"


def ended(api: Api, request_id: str) -> Any:
    life = api.get(f"/internal/requests/{request_id}").json
    assert life.get("status") != "completed", life
    return life if life.get("status") == "failed" else None


def test_models_describe_themselves(channel: Channel) -> None:
    server = channel.ask("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
    assert (server.name, "statistics" in server.extensions) == ("bunch", True)
    assert channel.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert channel.ask("ModelReady", pb.ModelReadyRequest(name="tensors"), pb.ModelReadyResponse).ready
    described = channel.ask("ModelMetadata", pb.ModelMetadataRequest(name="tensors"), pb.ModelMetadataResponse)
    assert [(each.name, each.datatype, list(each.shape)) for each in described.inputs] == [
        ("a", "FP32", [-1, 2]),
        ("b", "BYTES", [-1, 1]),
    ]
    config = channel.ask("ModelConfig", pb.ModelConfigRequest(name="tensors"), pb.ModelConfigResponse).config
    assert (config.max_batch_size, config.input[0].data_type) == (64, pb.TYPE_FP32)
    request = pb.ModelStatisticsRequest(name="echo")
    (stats,) = channel.ask("ModelStatistics", request, pb.ModelStatisticsResponse).model_stats
    assert stats.name == "echo"
    index = channel.ask("RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
    assert {each.name: each.state for each in index.models}["tensors"] == "READY"
    request = pb.RepositoryModelLoadRequest(model_name="echo")
    channel.ask("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse)


def test_health_is_for_the_server_and_for_the_service(channel: Channel) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    wait_until(lambda: {channel.health(""), channel.health(SERVICE)} == {serving}, what="both are serving")


# The last test here: it stops the role.
def test_a_stop_answers_what_is_under_way_and_ends(
    role: tuple[subprocess.Popen[bytes], int], channel: Channel, api: Api
) -> None:
    process, _ = role
    call = channel.start("slow", texts("the last one"), x_request_id="before-the-stop")
    wait_until(lambda: api.get("/internal/requests/before-the-stop").status == 200, what="it is under way")
    process.send_signal(signal.SIGTERM)
    assert call.result(PATIENCE_S).raw_output_contents
    assert process.wait(PATIENCE_S) == 0
