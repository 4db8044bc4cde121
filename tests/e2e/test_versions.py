"""Two versions of a model side by side, behind two frontends and the gRPC role, for two hundred owners with tokens."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Event
from typing import Any, NamedTuple

import pytest

from cli.supervisor.ports import free_port
from config.settings import load_settings
from tasks.fleet.desired_state import DesiredState
from tests import issuer
from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
default_model = "twin"

[models.twin]
source = "tests.fakes.models:Numbered"
options = { number = 1 }

[models.twin.versions.2]
options = { number = 2 }
weight = 5

[models.twin.versions."3.0"]
options = { number = 3 }
"""
OPERATOR = "the-operators-token-of-this-stack"
OWNERS = [f"owner-{number}" for number in range(200)]
OLD, NEW = "1", "2"
# Which owners are new depends on the order in which they come, but their number does not.
AT_FIVE, AT_TEN = 10, 20


class Callers:
    """The owners, each with a token."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._tokens = {
            name: issuer.token(time.time(), "HS256", sub=name, tier="paid", exp=int(time.time()) + 3600)
            for name in OWNERS
        }
        self._pool = ThreadPoolExecutor(max_workers=16)

    def post(self, owner: str, path: str, document: object, **headers: str) -> Answer:
        return self.api.post(path, document, Authorization=f"Bearer {self._tokens[owner]}", **headers)

    def infer(self, owner: str, model: str | None = None, **headers: str) -> Answer:
        body = {"input": "text", **({"model": model} if model else {})}
        return self.post(owner, "/v1/inference", body, **headers)

    def each(self, ask: Callable[[str], Answer]) -> dict[str, Answer]:
        """The answers to all owners, some at a time."""
        return dict(zip(OWNERS, self._pool.map(ask, OWNERS), strict=True))

    def divided(self) -> dict[str, str]:
        """The version of each owner."""
        return {name: version_of(answer) for name, answer in self.each(self.infer).items()}

    def metadata(self, owner: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._tokens[owner]}"),)

    def close(self) -> None:
        self._pool.shutdown()


class Group(NamedTuple):
    """An owner of each version."""

    old: str
    new: str


def version_of(answer: Answer) -> str:
    """The version that has answered; the model of it says the same."""
    assert answer.status == 200, answer.body
    document = answer.json
    version: str = document["metadata"]["model_version"]
    assert document["model"] == "twin"
    assert document["output"] == [float(version)]
    return version


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("versions"), MODELS)
    settings = {
        "auth": "jwt", "jwt_secret": issuer.SECRET, "jwt_algorithms": "HS256", "jwt_audience": issuer.AUDIENCE,
        "jwt_issuer": issuer.ISSUER, "service_token": f"ann:{OPERATOR}", "paid_rpm": 1_000_000,
        "enterprise_rpm": 1_000_000, "admission": "off", **PATIENT,
    }  # fmt: skip
    try:
        yield stack.start("--web-workers=2", "--workers=1", "--no-flower", **settings)
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def callers(own: Stack) -> Iterator[Callers]:
    with connected(own.port) as api:
        callers = Callers(api)
        wait_until(lambda: callers.infer(OWNERS[0], "twin@2").status == 200, what="both versions are loaded")
        yield callers
        callers.close()


@pytest.fixture(scope="module")
def group(callers: Callers) -> Group:
    divided = callers.divided()
    old, new = (next(name for name, version in divided.items() if version == each) for each in (OLD, NEW))
    return Group(old, new)


def metric(own: Stack, api: Api, model: str) -> float:
    """The requests for a model that were answered."""
    text = api.get("/metrics", Authorization=f"Bearer {OPERATOR}").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("bunch_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'model="{model}"' in line and 'code="OK"' in line)


def set_weight(own: Stack, weight: float | str) -> None:
    """As `manage.py tune` does, without the second that a process needs to start."""
    model = load_settings({}, str(own.config_file)).models["twin@2"]
    with own.redis() as redis:
        DesiredState(redis).tune(model, {"weight": weight})


def test_five_per_cent_of_ten_thousand_requests_and_each_owner_on_one_version(own: Stack, callers: Callers) -> None:
    before = {model: metric(own, callers.api, model) for model in ("twin", "twin@2")}
    inputs = ["text"] * 25
    found: dict[str, list[float]] = {name: [] for name in OWNERS}

    def ask(owner: str) -> Answer:
        return callers.post(owner, "/v1/inference/bulk", {"inputs": inputs})

    # Twice, so that most owners meet both frontends.
    for _ in range(2):
        for owner, answer in callers.each(ask).items():
            assert answer.status == 200, answer.body
            numbers = [each["output"][0] for each in answer.json["results"]]
            assert {f"twin@{number:.0f}" for number in numbers} == {answer.json["model"]}
            found[owner] += numbers
    assert {frozenset(numbers) for numbers in found.values()} == {frozenset([1.0]), frozenset([2.0])}
    assert sum(2.0 in numbers for numbers in found.values()) == AT_FIVE
    requests = [number for numbers in found.values() for number in numbers]
    assert len(requests) == 10_000
    assert 0.045 <= requests.count(2.0) / len(requests) <= 0.055

    def counted() -> bool:
        grown = {model: metric(own, callers.api, model) - number for model, number in before.items()}
        # The request before the first figures may be in the last ones only.
        return grown["twin"] == requests.count(1.0) and 0 <= grown["twin@2"] - requests.count(2.0) <= 1

    wait_until(counted, what="each version has its own figures")


def test_a_weight_moves_live_under_load_and_moves_only_owners_to_the_new_version(own: Stack, callers: Callers) -> None:
    before = callers.divided()
    kept = callers.each(lambda owner: callers.infer(owner, Idempotency_Key="before"))
    stop = Event()

    def load(owners: list[str]) -> list[Answer]:
        answers = []
        for number in count():
            if stop.is_set():
                return answers
            answers.append(callers.infer(owners[number % len(owners)]))
        raise AssertionError

    with ThreadPoolExecutor(max_workers=4) as pool:
        running = [pool.submit(load, OWNERS[number::4]) for number in range(4)]
        try:
            done = own.manage("tune", "twin@2", "weight=10", "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["weight"] == 10

            def moved() -> bool:
                # Twice, for both frontends.
                return all(list(callers.divided().values()).count(NEW) == AT_TEN for _ in range(2))

            wait_until(moved, what="all frontends divide by the new weight")
        finally:
            stop.set()
        answers = [each for thread in running for each in thread.result(PATIENCE_S)]
    assert len(answers) > 100
    assert {each.status for each in answers} == {200}
    after = callers.divided()
    changes = {(before[name], after[name]) for name in OWNERS if before[name] != after[name]}
    assert changes == {(OLD, NEW)}
    # The same request with the same key is answered by what has answered it, wherever it would go now.
    again = callers.each(lambda owner: callers.infer(owner, Idempotency_Key="before"))
    assert {name: version_of(answer) for name, answer in again.items()} == before
    assert [again[name].json["task_id"] for name in OWNERS] == [kept[name].json["task_id"] for name in OWNERS]
    other = callers.infer(OWNERS[0], "twin@2", Idempotency_Key="before")
    assert (other.status, other.error) == (409, "IDEMPOTENCY_CONFLICT")
    set_weight(own, "")
    wait_until(lambda: callers.divided() == callers.divided() == before, what="the owners are back where they were")


def embedding(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    body = {"input": "text", **({"model": model} if model else {})}
    answer = callers.post(owner, "/v1/embeddings", body)
    if answer.status != 200:
        return answer.status, answer.json["error"]["message"]
    number = answer.json["data"][0]["embedding"][0]
    assert answer.json["model"] == f"twin@{number:.0f}"
    return 200, number


def rerank(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    body = {"query": "q", "documents": ["d"], **({"model": model} if model else {})}
    answer = callers.post(owner, "/v1/rerank", body)
    if answer.status != 200:
        return answer.status, str(answer.json)
    number = answer.json["results"][0]["relevance_score"]
    assert answer.json["model"] == f"twin@{number:.0f}"
    return 200, number


def tei(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    answer = callers.post(owner, "/embed", {"inputs": "text"})
    scored = callers.post(owner, "/rerank", {"query": "q", "texts": ["t"]})
    assert answer.json[0][0] == scored.json[0]["score"]
    return answer.status, answer.json[0][0]


def predict(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    body = {"input_data": "text", **({"model_id": model} if model else {})}
    answer = callers.post(owner, "/v1/predict", body)
    return answer.status, answer.json["output"][0] if answer.status == 200 else answer.json["message"]


def simple(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    answer = callers.post(owner, "/api/inference", {"input": "text"})
    return answer.status, answer.json["output"][0]


def bulk(callers: Callers, owner: str, model: str | None) -> tuple[int, Any]:
    body = {"inputs": ["a", "b"], **({"model": model} if model else {})}
    answer = callers.post(owner, "/v1/inference/bulk", body)
    if answer.status != 200:
        return answer.status, answer.json["message"]
    first, second = (each["output"][0] for each in answer.json["results"])
    assert first == second
    return 200, first


def kserve(callers: Callers, owner: str, model: str | None, *, in_path: bool = True) -> tuple[int, Any]:
    name, _, version = (model or "twin").partition("@")
    path = f"/v2/models/{name}/versions/{version}" if version and in_path else f"/v2/models/{model or 'twin'}"
    tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "data": ["text"]}
    answer = callers.post(owner, f"{path}/infer", {"inputs": [tensor]})
    if answer.status != 200:
        return answer.status, answer.json["error"]
    number = answer.json["outputs"][0]["data"][0]
    assert (answer.json["model_name"], answer.json["model_version"]) == ("twin", f"{number:.0f}")
    return 200, number


# Each with whether it can name a model at all.
DOORS: dict[str, tuple[Callable[[Callers, str, str | None], tuple[int, Any]], bool]] = {
    "bulk": (bulk, True),
    "predict": (predict, True),
    "simple": (simple, False),
    "openai": (embedding, True),
    "rerank": (rerank, True),
    "tei": (tei, False),
    "kserve": (kserve, True),
    "kserve with @": (partial(kserve, in_path=False), True),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_divides_a_plain_name_alike_and_takes_a_version(callers: Callers, group: Group, name: str) -> None:
    door, takes_names = DOORS[name]
    for owner, number in ((group.old, 1), (group.new, 2)):
        assert door(callers, owner, None) == (200, number)
        if takes_names:
            assert [door(callers, owner, f"twin@{each}") for each in (OLD, NEW)] == [(200, 1), (200, 2)]
            status, text = door(callers, owner, "twin@7")
            assert status == 404
            assert "there is no version '7' of twin; its versions are 1, 2, 3.0" in text


def test_the_grpc_role_divides_as_the_others_do(own: Stack, callers: Callers, group: Group) -> None:
    grpc = pytest.importorskip("grpc", reason="needs requirements-grpc.txt")
    from webapp.grpc.proto import open_inference_pb2 as pb  # needs gRPC's packages
    from webapp.grpc.service import SERVICE

    port = free_port()
    process = own.spawn("grpc", f"--config={own.config_file}", grpc_port=port, redis_url=own.redis_url)
    contents = pb.InferTensorContents(bytes_contents=[b"text"])
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[1], contents=contents)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
            method = channel.unary_unary(
                f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
            )

            def ask(owner: str, version: str = "") -> tuple[str, str, float]:
                request = pb.ModelInferRequest(model_name="twin", model_version=version, inputs=[tensor])
                answer = method(request, timeout=PATIENCE_S, metadata=callers.metadata(owner))
                (number,) = struct.unpack("<f", answer.raw_output_contents[0])
                return answer.model_name, answer.model_version, number

            assert [ask(each) for each in group] == [("twin", OLD, 1), ("twin", NEW, 2)]
            assert [ask(group.old, each) for each in (OLD, NEW)] == [("twin", OLD, 1), ("twin", NEW, 2)]
            with pytest.raises(grpc.RpcError, match=r"its versions are 1, 2, 3\.0") as refused:
                ask(group.old, "7")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_version_without_weight_is_asked_by_name(own: Stack, callers: Callers) -> None:
    set_weight(own, 0)
    wait_until(lambda: set(callers.divided().values()) == {OLD}, what="all owners are on the model's own version")
    assert version_of(callers.infer(OWNERS[0], "twin@2")) == NEW
    set_weight(own, "")


def test_what_operators_see_has_a_row_for_each_version(own: Stack, callers: Callers, group: Group) -> None:
    told = json.loads(own.manage("models", "--json").stdout)
    assert [(each["model"], each["version"], each["weight"]) for each in told] == [
        ("twin", "1", None), ("twin@2", "2", 5), ("twin@3.0", "3.0", 0),
    ]  # fmt: skip
    ready = {name: callers.api.get(f"/readyz?model={name}").status for name in ("twin", "twin@2", "twin@3.0")}
    assert ready == {"twin": 200, "twin@2": 200, "twin@3.0": 200}
    accept = {"Authorization": callers.metadata(group.old)[0][1]}
    assert callers.api.get("/v2/models/twin", **accept).json["versions"] == ["1", "2", "3.0"]
    stats = callers.api.get("/v2/models/twin/versions/2/stats", **accept).json["model_stats"]
    assert [(each["name"], each["version"]) for each in stats] == [("twin", "2")]
    ids = [each["id"] for each in callers.api.get("/v1/models", **accept).json["data"]]
    assert ids == ["twin", "twin@2", "twin@3.0"]
    assert callers.api.get("/v1/models/twin@1", **accept).json["id"] == "twin@1"
