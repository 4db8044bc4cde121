"""The requests that the doors queue for a call, with a client that only notes it: no queue, no server."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from werkzeug.test import Client as Browser
from werkzeug.test import TestResponse

from config.settings import ModelSettings, Settings
from config.shards import Places
from config.tiers import Tier
from tasks.client.client import Client
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import BunchError, RateLimited, Refused, ServiceOverloaded
from tasks.protocol.caller import ANYBODY, Caller
from tasks.protocol.results import Reply
from webapp.api import result_events
from webapp.app import create_app, make_services
from webapp.body_budget import LARGE_BYTES
from webapp.errors import ApiError
from webapp.fallback import FallbackModel
from webapp.readiness import Readiness
from webapp.request import HttpRequest
from webapp.services import Services


class Noting(Client):
    """A client that answers each request with a number, and notes it."""

    def __init__(self, settings: Settings, places: Places, **more: Any) -> None:
        super().__init__(settings, places.home.redis, **more)
        self.noted: list[Submission] = []
        self.refusal: BunchError | None = None

    def submit(self, submission: Submission) -> Pending:
        self.noted.append(submission)
        pending = Pending("task", time.monotonic() + 1)
        pending.settle(self.refusal)
        return pending

    def wait(self, pending: Pending) -> Reply:
        if self.refusal is not None:
            raise self.refusal
        return Reply(pending.task_id, "SUCCESS", msgspec.Raw(b"0.5"), msgspec.Raw(b"{}"))


class Frontend:
    """An application over it. The model `m` has every task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(Readiness, "refusal", lambda *_: None)
        model = ModelSettings(name="m", source="a:B", tasks=["embed", "rerank"], **settings.pop("model", {}))
        # Nobody connects to it.
        self.settings = Settings(
            redis_url="redis://127.0.0.1:1", auth="off", models={"m": model}, default_model="m", **settings
        )
        self.services: Services = make_services(self.settings, make_client=Noting)
        self.turns: list[str] = []
        turn = self.services.large.turn

        def noted(key_id: str, *more: Any) -> Any:
            self.turns.append(key_id)
            return turn(key_id, *more)

        monkeypatch.setattr(self.services.large, "turn", noted)
        self.browser = Browser(create_app(self.services), TestResponse)

    @property
    def client(self) -> Noting:
        client = self.services.client
        assert isinstance(client, Noting)
        return client

    @property
    def queued(self) -> list[Submission]:
        return self.client.noted

    def identify(self, caller: Caller) -> None:
        """Every request is this caller's."""
        identity: Any = SimpleNamespace(identify=lambda *_: caller)
        self.services.identity = identity

    def post(self, path: str, body: object, **headers: str) -> TestResponse:
        return self.browser.post(path, json=body, headers={name.replace("_", "-"): headers[name] for name in headers})


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch) -> Frontend:
    return Frontend(monkeypatch)


@pytest.mark.parametrize(("path", "documents"), [("/v1/rerank", "documents"), ("/rerank", "texts")])
def test_a_query_that_its_documents_multiply_is_refused_before_anything_is_queued(
    frontend: Frontend, path: str, documents: str
) -> None:
    answer = frontend.post(path, {"query": "q" * 300_000, documents: ["d"] * 500})
    assert answer.status_code in {400, 422}
    assert "query: it is sent with each document; at most 8388 bytes" in answer.text
    assert not frontend.queued
    assert frontend.post(path, {"query": "q" * 8000, documents: ["d"] * 500}).status_code == 200
    assert len(frontend.queued) == 500


def test_inputs_that_are_longer_in_the_queue_than_a_call_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = Frontend(monkeypatch, max_body_bytes=10_000)
    # Within the limit of a query, beyond that of a call.
    answer = frontend.post("/v1/rerank", {"query": "q" * 5000, "documents": ["d"] * 20})
    assert answer.status_code == 413
    assert "documents: more than 60000 bytes as JSON" in answer.text
    assert not frontend.queued


def test_a_small_body_that_becomes_a_large_call_waits_for_its_turn_as_a_large_one(frontend: Frontend) -> None:
    frontend.post("/v1/rerank", {"query": "q" * 100, "documents": ["d"] * 100})
    assert not frontend.turns
    frontend.post("/v1/rerank", {"query": "q" * 1000, "documents": ["d"] * 100})
    assert sum(len(each.input) for each in frontend.queued[100:]) > LARGE_BYTES
    assert len(frontend.turns) == 1


def infer_body(shape: str = "[1]", parameters: str = "{}") -> bytes:
    return b'{"inputs":[{"name":"input","datatype":"BYTES","shape":%b,"data":["a"]}],"parameters":%b}' % (
        shape.encode(),
        parameters.encode(),
    )


def test_numbers_of_hundreds_of_digits_are_no_errors_of_the_server(frontend: Frontend) -> None:
    answer = frontend.browser.post("/v2/models/m/infer", data=infer_body(parameters=f'{{"timeout":{10**400}}}'))
    # What answers here is no vector.
    assert "fewer dimensions" in answer.text
    assert frontend.queued[-1].timeout_s == frontend.settings.request_timeout_s
    for size in (10**638, 2**63):
        answer = frontend.browser.post("/v2/models/m/infer", data=infer_body(f"[1,{size}]"))
        assert (answer.status_code, "shape[1]: Expected" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(b" " * 100_000), gzip.compress(b" " * 100_000)[:-1], b"no gzip"],
    ids=["whole", "cut off", "not gzip"],
)
def test_a_refused_body_counts_with_what_it_cost_to_unpack(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, packed: bytes
) -> None:
    counted: list[object] = []
    monkeypatch.setattr(frontend.services.large, "refused", counted.append)
    headers = {"Content-Encoding": "gzip"}
    assert frontend.browser.post("/v2/models/m/infer", data=packed, headers=headers).status_code == 400
    assert len(counted) == 1
    small = gzip.compress(b" ")
    assert frontend.browser.post("/v2/models/m/infer", data=small, headers=headers).status_code == 400
    assert len(counted) == 1


ELSEWHERE = {"Origin": "https://else.example"}


@pytest.mark.parametrize(
    ("origins", "headers", "status"),
    [
        ("", {**ELSEWHERE, "Sec-Fetch-Site": "cross-site"}, 403),
        # To an address without TLS that is not the machine's own, browsers send the origin only.
        ("", ELSEWHERE, 403),
        ("", {"Origin": "null"}, 403),
        ("https://app.example", ELSEWHERE, 403),
        ("https://else.example", {**ELSEWHERE, "Sec-Fetch-Site": "cross-site"}, 200),
        ("", {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 200),
        ("", {"Origin": "http://localhost"}, 200),
        # Triton's clients.
        ("", {}, 200),
    ],
)
def test_a_page_of_another_site_cannot_send_a_body_without_a_type(
    monkeypatch: pytest.MonkeyPatch, origins: str, headers: dict[str, str], status: int
) -> None:
    frontend = Frontend(monkeypatch, cors_origins=origins)
    answer = frontend.browser.post("/v2/models/m/infer", data=infer_body(), headers=headers)
    assert (answer.status_code == 403, len(frontend.queued)) == (status == 403, status != 403)


@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_page_of_another_site_acts_on_no_model(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    frontend = Frontend(monkeypatch, cors_origins="https://else.example")
    frontend.identify(ANYBODY[Tier.PAID])
    path = f"/v2/repository/models/m/{action}"
    assert frontend.browser.post(path, headers=ELSEWHERE).status_code == 403
    assert frontend.browser.post(path).status_code != 403


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/models/m/infer"])
def test_a_format_among_the_parameters_is_the_callers_mistake_and_not_the_models(frontend: Frontend, path: str) -> None:
    packed = {"encoding_format": "base64"}
    body = {"input": "a", "inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    answer = frontend.post(path, {**body, "parameters": packed})
    assert (answer.status_code, len(frontend.queued)) == (400, 0)
    assert "encoding_format is a field of /v1/embeddings" in answer.text
    frontend.post("/v1/embeddings", {**body, **packed})
    assert msgspec.json.decode(frontend.queued[0].parameters) == packed


@pytest.mark.parametrize(
    ("tasks", "given", "sent"),
    [
        (["embed"], b'{"a":1,"encoding_format":"base64"}', b'{"a":1}'),
        (["embed"], b'{"encoding_format":"float"}', b'{"encoding_format":"float"}'),
        # Of a model without vectors it is a parameter like others.
        ([], b'{"encoding_format":"base64"}', b'{"encoding_format":"base64"}'),
    ],
)
def test_an_api_that_is_asked_directly_sees_no_format(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Any], given: bytes, sent: bytes
) -> None:
    model = FallbackModel(ModelSettings(name="m", source="http://127.0.0.1:1/", tasks=tasks), 1000)
    posted: list[bytes] = []

    def post(body: bytes, traceparent: str) -> bytes:
        posted.append(body)
        return b"[1]"

    monkeypatch.setattr(model, "_post", post)
    model.ask(Submission("m", ANYBODY[Tier.PAID], b'"a"', 1.0, given), Pending("task", time.monotonic() + 20))
    assert posted == [b'{"inputs":["a"],"parameters":[%b]}' % sent]


def test_a_key_is_taken_whatever_the_number_of_inputs(frontend: Frontend) -> None:
    for documents in (["a"], ["a", "b"], ["b"]):
        body = {"query": "q", "documents": documents}
        assert frontend.post("/v1/rerank", body, Idempotency_Key="k", X_Request_Id="mine").status_code == 200
    one, first_of_two, _, other = frontend.queued
    # What the queue refuses is one name with another hash of the whole call.
    assert {each.idempotency_key for each in (one, first_of_two, other)} == {"k\n0"}
    assert len({each.call_hash for each in (one, first_of_two, other)}) == 3
    assert one.request_id == "mine"


def test_a_call_that_no_burst_holds_is_refused_before_any_of_it_counts(frontend: Frontend) -> None:
    frontend.identify(Caller("a", "a", Tier.PAID, rpm=12, burst=2))
    answer = frontend.post("/v1/embeddings", {"input": ["a", "b", "c"]})
    assert (answer.status_code, answer.headers["x-should-retry"], frontend.queued) == (429, "false", [])
    assert "at most 2 inputs in one call" in answer.text
    frontend.post("/v1/embeddings", {"input": ["a", "b"]})
    assert len(frontend.queued) == 2


@pytest.mark.parametrize(("refusal", "status"), [(RateLimited, 429), (ServiceOverloaded, 503)])
def test_once_the_queue_refuses_an_input_the_rest_of_its_call_is_not_sent(
    frontend: Frontend, refusal: type[Refused], status: int
) -> None:
    frontend.identify(Caller("a", "a", Tier.PAID, rpm=1000, burst=1000))
    frontend.client.refusal = refusal("slow down", 3.0)
    answer = frontend.post("/v1/embeddings", {"input": ["a"] * 500})
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "3")
    assert 0 < len(frontend.queued) < 100
    # Each of a bulk call is answered for itself.
    frontend.post("/v1/inference/bulk", {"inputs": ["a"] * 500})
    assert len(frontend.queued) > 500


def test_one_key_follows_half_of_the_results_and_leaves_the_others(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_events, "_MAX_STREAMS", 3)
    monkeypatch.setattr(result_events, "_MAX_STREAMS_OF_A_KEY", 2)

    def follow(key_id: str) -> Iterator[bytes]:
        call = HttpRequest({})
        call.caller = Caller(key_id, key_id, Tier.PAID)
        reply = Reply("task", "PENDING", msgspec.Raw(b""), msgspec.Raw(b""))
        stream = result_events.follow(frontend.services, call, reply, lambda _: "PENDING", lambda _: b"")
        chunks = iter(stream.chunks)
        next(chunks)
        return chunks

    chunks = [follow("a"), follow("a")]
    with pytest.raises(ApiError, match="SERVICE_OVERLOADED"):
        follow("a")
    chunks.append(follow("b"))
    with pytest.raises(ApiError, match="SERVICE_OVERLOADED"):
        follow("c")
    for each in chunks:
        each.close()  # type: ignore[attr-defined]
    assert not frontend.services.followed
