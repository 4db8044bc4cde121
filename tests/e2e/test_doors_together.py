"""All doors at once at one model, KServe's among them: mixed batches, right answers, and who leaves."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from cli.supervisor.ports import free_port
from config.keys import Shard
from config.tiers import TIERS
from tasks.observability.batch_log import BatchLog
from tasks.protocol.ids import belongs_to
from tests import issuer
from tests.e2e.client import Api, connected
from tests.e2e.doors import HTTP_DOORS, MODEL, Door, elements, score, shares, vector
from tests.e2e.stack import Stack
from tests.e2e.test_operators import Scrape
from tests.waiting import PATIENCE_S, wait_until

grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from webapp.grpc.proto import open_inference_pb2 as pb  # noqa: E402 - needs gRPC's packages
from webapp.grpc.service import SERVICE  # noqa: E402 - needs gRPC's packages

# A queue of its own holds the model's only executor, so that a batch of it computes nothing else.
MODELS = f"""\
[models.{MODEL}]
source = "tests.fakes.embedder:Everything"
timeout_ms = 60000
cache = false
"""
REQUESTS = 10_000
# Of all requests, those of each door; the rest are of `/v1/inference`, one by one.
SHARES = {"/v1/predict": 200, "/rerank": 400, "/v1/rerank": 400, "grpc": 1_400}
CALLERS = [(tier.value, owner) for tier in TIERS for owner in ("alice", "bob")]
QUEUES = [Shard().queue(MODEL, tier) for tier in TIERS]


class Knocker:
    """Calls every door of one stack, as one of `CALLERS`."""

    def __init__(self, port: int, grpc_port: int) -> None:
        self.port = port
        self._channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._tokens = [
            issuer.token(time.time(), "HS256", sub=owner, tier=tier, exp=int(time.time()) + 3600)
            for tier, owner in CALLERS
        ]
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def bearer(self, number: int) -> str:
        return f"Bearer {self._tokens[number % len(self._tokens)]}"

    def ask(self, door: Door, texts: Sequence[str], number: int = 0) -> list[list[float]]:
        body = door.body(texts)
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            self._local.connection = connection
            self._connections.append(connection)
        connection.request("POST", door.path, body, {**door.head(body), "Authorization": self.bearer(number)})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, (door, answer)
        return door.read(answer)

    def leave(self, door: Door, texts: Sequence[str]) -> socket.socket:
        """Send a request whose answer is not waited for; closing the connection leaves."""
        body = door.body(texts)
        head = {"Host": "localhost", "Authorization": self.bearer(0), **door.head(body)}
        connection = socket.create_connection(("127.0.0.1", self.port))
        lines = [f"POST {door.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)
        return connection

    def start(self, texts: Sequence[str], number: int = 0) -> Any:
        """A gRPC call under way."""
        method = self._channel.unary_unary(
            f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        return method.future(_request(texts), timeout=PATIENCE_S, metadata=[("authorization", self.bearer(number))])

    def stream(self, texts: Sequence[str]) -> Any:
        method = self._channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        return method(iter([_request(texts)]), metadata=[("authorization", self.bearer(0))])

    def ask_grpc(self, texts: Sequence[str], number: int) -> list[list[float]]:
        (raw,) = self.start(texts, number).result().raw_output_contents
        return [list(each) for each in struct.iter_unpack("<8f", raw)]

    def close(self) -> None:
        for each in self._connections:
            each.close()
        self._channel.close()


def _request(texts: Sequence[str]) -> Any:
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[len(texts)])
    return pb.ModelInferRequest(model_name=MODEL, inputs=[tensor], raw_input_contents=[elements(texts)])


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[Stack]:
    own = Stack(tmp_path_factory.mktemp("together"), MODELS)
    settings = {
        "auth": "jwt",
        "jwt_secret": issuer.SECRET,
        "jwt_algorithms": "HS256",
        "jwt_audience": issuer.AUDIENCE,
        "jwt_issuer": issuer.ISSUER,
        "admission": "off",
        "grpc_port": grpc_port,
        "request_timeout_ms": 120_000,
        "queue_timeout_ms": 120_000,
        **{f"{tier.value}_rpm": 1_000_000 for tier in TIERS},
        "burst_ms": 60_000,
    }
    try:
        own.start("--web-workers=1", "--workers=1", "--no-flower", "--grpc", **settings)
        yield own
        own.stop()
    finally:
        own.kill()


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


@pytest.fixture(scope="module")
def knock(stack: Stack, grpc_port: int, api: Api) -> Iterator[Knocker]:
    each = Knocker(stack.port, grpc_port)

    def serves_grpc() -> bool:
        try:
            return bool(each.start(["ready"]).result().raw_output_contents)
        except grpc.RpcError:
            return False

    wait_until(serves_grpc, what="gRPC is served")
    # Counts come once a second: this one must not be among those of a test.
    wait_until(lambda: Scrape(api).total("bunch_requests_total", door="grpc", code="OK") == 1, what="it is counted")
    yield each
    each.close()


@pytest.fixture
def redis(stack: Stack) -> Iterator[Redis]:
    with stack.redis() as client:
        yield client


@contextlib.contextmanager
def held(knock: Knocker, folder: Path) -> Iterator[None]:
    """The model is in the middle of a batch until the end: whatever comes waits, but for what fills a batch."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(knock.ask, HTTP_DOORS[0], [str(folder)])
        wait_until((folder / "held").exists, what="the model holds a batch")
        try:
            yield
        finally:
            (folder / "open").touch()
        ahead.result()


def waiting(redis: Redis) -> int:
    return sum(redis.llen(queue) for queue in QUEUES)


def test_ten_thousand_requests_of_all_doors_tiers_and_owners_share_batches(
    knock: Knocker, api: Api, redis: Redis, tmp_path: Path
) -> None:
    before = Scrape(api)
    texts = [f"text {number}" for number in range(REQUESTS)]
    others = [door for door in HTTP_DOORS[1:] if door.path not in SHARES]
    rest = REQUESTS - sum(SHARES.values())
    calls: list[tuple[Door | None, Sequence[str]]] = []
    left = iter(texts)

    def plan(door: Door | None, count: int) -> None:
        own = [next(left) for _ in range(count)]
        calls.extend((door, part) for part in shares(own, door.most if door else 40))

    for door in HTTP_DOORS[1:]:
        plan(door, SHARES.get(door.path, rest // (len(others) + 1)))
    plan(None, SHARES["grpc"])
    plan(HTTP_DOORS[0], REQUESTS - sum(len(part) for _, part in calls))
    random.Random(7).shuffle(calls)

    def ask(number: int) -> bool:
        door, part = calls[number]
        answers = knock.ask_grpc(part, number) if door is None else knock.ask(door, part, number)
        wanted = [score(text) if door and door.ranks else vector(text) for text in part]
        return [pytest.approx(each, rel=1e-6) for each in wanted] == answers

    with ThreadPoolExecutor(48) as pool:
        with held(knock, tmp_path):
            asked = [pool.submit(ask, number) for number in range(len(calls))]
            wait_until(lambda: waiting(redis) > 64, what="more than a batch waits")
        assert all(each.result() for each in asked)

    counts = Counter({"bunch": 1})
    for door, part in calls:
        counts["grpc" if door is None else door.of] += len(part)
    assert sum(counts.values()) == REQUESTS + 1

    def since(sample: str, **labels: str) -> float:
        return Scrape(api).total(sample, model=MODEL, **labels) - before.total(sample, model=MODEL, **labels)

    for door_name, number in counts.items():
        wait_until(lambda: since("bunch_requests_total", door=door_name, code="OK") == number, what=door_name)  # noqa: B023
    assert since("bunch_batches_total") < REQUESTS / 4
    records = [each for each in BatchLog(redis).records() if each.members]
    assert any({each.tier for each in record.members} == {tier.value for tier in TIERS} for record in records)
    assert any(
        all(any(belongs_to(each.id, owner) for each in record.members) for owner in ("jwt:alice", "jwt:bob"))
        for record in records
    )


def test_who_leaves_any_door_while_its_request_waits_costs_no_compute(
    knock: Knocker, api: Api, redis: Redis, tmp_path: Path
) -> None:
    before = Scrape(api)
    name = "bunch_cancelled_before_compute_total"
    number = 0
    with held(knock, tmp_path):
        leaving = []
        for door in HTTP_DOORS:
            leaving.append(knock.leave(door, ["left", "behind"][: door.most]))
            number += min(door.most, 2)
        called = [knock.start(["left", "behind"]), knock.stream(["left", "behind"])]
        number += 4
        wait_until(lambda: waiting(redis) == number, what=lambda: f"{waiting(redis)} of {number} wait")
        for connection in leaving:
            connection.close()
        for call in called:
            call.cancel()
        wait_until(lambda: redis.zcard(Shard().cancelled()) == number, what="all are noticed")
    wait_until(lambda: Scrape(api).total(name) - before.total(name) == number, what="none of them was computed")
    assert waiting(redis) == 0
