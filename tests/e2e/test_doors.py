"""The doors of other APIs in one running stack: answers, errors, rubbish, and who leaves."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.e2e import test_openapi
from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.e2e.test_operators import Scrape, settled
from tests.waiting import wait_until

MODELS = """\
default_model = "echo"

[models.echo]
source = "workers.models.echo:Echo"

[models.embedder]
source = "tests.fakes.embedder:Embedder"
timeout_ms = 60000
cache = false
parameters_schema = { properties.top.type = "integer" }

[models.ranker]
source = "tests.fakes.embedder:Ranker"

[models.classifier]
source = "tests.fakes.embedder:Classifier"

[models.narrow]
source = "tests.fakes.embedder:SlowEmbedder"
max_batch_size = 1
max_queue_depth = 2
"""
DOORS = ("/v1/embeddings", "/v1/rerank", "/embed", "/rerank", "/predict", "/")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    own = Stack(tmp_path_factory.mktemp("doors"), MODELS)
    try:
        own.start("--web-workers=1", "--workers=1", "--no-flower", admission="off", max_bulk_items=100, **PATIENT)
        yield own
        own.stop()
    finally:
        own.kill()


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        for model in ("echo", "embedder", "ranker", "classifier", "narrow"):
            wait_until(lambda model=model: api.get(f"/readyz?model={model}").status == 200, what=f"{model} is ready")
        yield api


def vector(text: str | list[int]) -> list[float]:
    """The vector that `tests.fakes.embedder.Embedder` makes of it."""
    numbers = [len(text), *(text if isinstance(text, list) else map(ord, text))]
    return [number / 3 for number in (*numbers, *[0] * 8)][:8]


def error_of(path: str, answer: Answer) -> str:
    """The message of an error, whose form it checks."""
    document = answer.json
    assert answer.headers["content-type"] == "application/json"
    if path in {"/v1/embeddings", "/v1/models/none"}:
        assert document.keys() == {"error"}, document
        assert document["error"].keys() == {"message", "type", "param", "code"}
        assert answer.headers["x-should-retry"] in {"true", "false"}
        return str(document["error"]["message"])
    if path == "/v1/rerank":
        assert document.keys() == {"message", "detail", "code", "id"}, document
        return str(document["message"])
    assert document.keys() == {"error", "error_type"}, document
    return str(document["error"])


def test_embeddings_in_openai_s_form(api: Api) -> None:
    answer = api.post("/v1/embeddings", {"input": ["abc", "de"], "model": "embedder"})
    assert answer.status == 200
    assert answer.json == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": pytest.approx(vector("abc"))},
            {"object": "embedding", "index": 1, "embedding": pytest.approx(vector("de"))},
        ],
        "model": "embedder",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


def test_base64_is_the_same_numbers(api: Api) -> None:
    for given in ("abc", ["abc", "d"], [1, 2], [[1, 2], [3]]):
        forms = [
            api.post("/v1/embeddings", {"input": given, "model": "embedder", "encoding_format": form}).json["data"]
            for form in ("float", "base64")
        ]
        for plain, packed in zip(*forms, strict=True):
            data = base64.b64decode(packed["embedding"])
            assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(plain["embedding"], rel=1e-6)


def test_a_large_body_has_its_options_too(api: Api) -> None:
    body = {"input": [f"{n:02}" * 1000 for n in range(60)], "model": "embedder", "dimensions": 2}
    packed = api.post("/v1/embeddings", body | {"encoding_format": "base64"}).json["data"]
    assert len(packed) == 60
    for n, each in enumerate(packed):
        wanted = vector(body["input"][n])[:2]
        assert struct.unpack("<2f", base64.b64decode(each["embedding"])) == pytest.approx(wanted, rel=1e-6)


def test_a_request_that_names_no_model_gets_one_for_its_task(api: Api) -> None:
    assert api.post("/v1/embeddings", {"input": "a"}).json["model"] == "embedder"
    assert api.post("/v1/rerank", {"query": "a", "documents": ["a"]}).json["model"] == "ranker"


def test_options_reach_the_model_and_only_those_that_are_for_it(api: Api) -> None:
    body = {"input": "abc", "model": "embedder", "dimensions": 2, "encoding_format": "base64"}
    packed = api.post("/v1/embeddings", body).json["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(packed)) == pytest.approx(vector("abc")[:2])
    body |= {"input": "parameters", "parameters": {"top": 1}}
    assert error_of("/v1/embeddings", api.post("/v1/embeddings", body)) == "['dimensions', 'top']"
    refused = api.post("/v1/embeddings", body | {"parameters": {"top": "no"}})
    assert refused.status == 400
    assert refused.json["error"]["param"] == "parameters.top"
    assert error_of("/embed", api.post("/embed", {"inputs": "parameters", "truncate": True})) == "['truncate']"
    asked = {"inputs": "parameters", "truncate": True, "truncation_direction": "Left", "normalize": False}
    assert "normalize', 'truncate', 'truncation_direction" in error_of("/embed", api.post("/embed", asked))


def test_documents_in_cohere_s_and_jina_s_form(api: Api) -> None:
    body = {"query": "abc", "documents": ["xxxa", {"text": "abab", "id": 7}, "xx"], "model": "ranker", "top_n": 2}
    answer = api.post("/v1/rerank", body).json
    assert answer["results"] == [{"index": 1, "relevance_score": 1.0}, {"index": 0, "relevance_score": 0.25}]
    assert answer["usage"]["total_tokens"] == 6
    assert answer["meta"]["api_version"]["version"] == "1"
    answer = api.post("/v1/rerank", body | {"return_documents": True, "top_n": 9}).json
    assert [each["document"]["text"] for each in answer["results"]] == ["abab", "xxxa", "xx"]


def test_the_form_of_text_embeddings_inference(api: Api) -> None:
    for path in ("/embed", "/"):
        assert api.post(path, {"inputs": "abc"}).json == [pytest.approx(vector("abc"))]
        assert api.post(path, {"inputs": ["abc", "d"]}).json == [pytest.approx(vector(each)) for each in ("abc", "d")]
        assert api.post(path, {"inputs": [1, 2]}).json == [pytest.approx(vector([1, 2]))]
    body = {"query": "abc", "texts": ["xxxa", "abab"]}
    assert api.post("/rerank", body).json == [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.25}]
    assert api.post("/rerank", body | {"return_text": True}).json[0]["text"] == "abab"
    short, long = {"label": "short", "score": 0.25}, {"label": "long", "score": 0.75}
    assert api.post("/predict", {"inputs": "abc"}).json == [long, short]
    assert api.post("/predict", {"inputs": ["ab", "c"]}).json == [long, short]
    assert api.post("/predict", {"inputs": [["abc"], ["ab", "c"]]}).json == [[long, short]] * 2
    info = api.get("/info").json
    assert (info["model_id"], info["max_client_batch_size"]) == ("embedder", 100)
    assert info.keys() >= {
        *("model_dtype", "model_type", "max_concurrent_requests", "max_input_length", "max_batch_tokens"),
        *("auto_truncate", "tokenization_workers", "version"),
    }
    health = api.get("/health")
    assert (health.status, health.body) == (200, b"")


def test_models_have_their_tasks(api: Api) -> None:
    listed = api.get("/v1/models").json["data"]
    assert {each["id"]: each["tasks"] for each in listed} == {
        "echo": [],
        "embedder": ["embed"],
        "ranker": ["rerank"],
        "classifier": ["classify"],
        "narrow": ["embed"],
    }
    assert api.get("/v1/models/embedder").json == next(each for each in listed if each["id"] == "embedder")
    unknown = api.get("/v1/models/none")
    assert unknown.status == 404
    assert "there is no model 'none'" in error_of("/v1/models/none", unknown)


def test_one_failure_is_that_of_the_call_and_names_its_input(api: Api) -> None:
    bodies: dict[str, tuple[dict[str, Any], int, str]] = {
        "/v1/embeddings": ({"model": "embedder", "input": ["a", "refuse"]}, 422, "input[1]: refused, as asked"),
        "/embed": ({"inputs": ["a", "refuse"]}, 422, "inputs[1]: refused, as asked"),
        "/rerank": ({"query": "a", "texts": ["a", "fail"]}, 424, "texts[1]: "),
        "/v1/rerank": ({"query": "a", "documents": ["fail", "a"]}, 500, "documents[0]: "),
        "/": ({"inputs": "nothing"}, 424, "embedder has the task embed; it must return a list of numbers"),
    }
    for path, (body, status, message) in bodies.items():
        answer = api.post(path, body)
        assert answer.status == status, answer
        assert error_of(path, answer).startswith(message), answer


def test_a_deadline_and_a_full_queue_have_the_form_of_the_door(api: Api) -> None:
    late = api.post("/v1/embeddings", {"model": "narrow", "input": "a", "timeout_ms": 5})
    assert (late.status, late.headers["x-should-retry"]) == (504, "false")
    assert late.json["error"]["type"] == "server_error"
    full = api.post("/v1/embeddings", {"model": "narrow", "input": [str(n) for n in range(50)]})
    assert (full.status, full.headers["x-should-retry"]) == (503, "true")
    assert full.json["error"]["code"] == "service_overloaded"
    assert int(full.headers["retry-after-ms"]) > 0
    assert int(full.headers["retry-after"]) >= 1


def test_one_key_is_one_answer_however_often_it_is_sent(api: Api) -> None:
    body = {"model": "embedder", "input": ["once", "twice"]}
    answers = [api.post("/v1/embeddings", body, Idempotency_Key="k1").json for _ in range(2)]
    assert answers[0] == answers[1]
    other = api.post("/v1/embeddings", body | {"input": ["once", "other"]}, Idempotency_Key="k1")
    assert (other.status, other.headers["x-should-retry"]) == (409, "false")
    assert api.post("/v1/embeddings", body | {"input": "once"}, Idempotency_Key="k1").status == 409


FIELDS = {
    "/v1/embeddings": b'"input":%b',
    "/v1/rerank": b'"query":"a","documents":%b',
    "/rerank": b'"query":"a","texts":%b',
}
RUBBISH: tuple[bytes, ...] = (
    *(b"null", b"5", b"{}", b"[]", b"true", b'{"a":1}', b"[null]", b"[[]]", b"[[[1]]]", b'[{"a":1}]'),
    *(b"[9223372036854775808]", b"[[-1]]", b"[1.5]", b"[1e400]", b'["a",[1]]', b"9" * 5000, b"[" + b"9" * 5000 + b"]"),
    *(b'"\xff"', b'["\\ud800"]', b"NaN", b"[" * 300 + b"]" * 300, b"[" * 100_000, b'"a","model":5', b'"a","model":[]'),
)


def test_rubbish_is_refused_in_the_form_of_the_door_and_nothing_is_queued(api: Api) -> None:
    settled(api)
    before = Scrape(api).total("bunch_requests_total")
    for path in DOORS:
        refuse_rubbish(api, path)
    settled(api)
    assert Scrape(api).total("bunch_requests_total") == before


def refuse_rubbish(api: Api, path: str) -> None:
    asked = b"{" + FIELDS.get(path, b'"inputs":%b') + b"}"
    wrong = [asked % each for each in RUBBISH]
    wrong += [b"", b"{", b"\x00", b"null", b'"a"', b"{}", b"[1]", b"\xff\xfe", asked % b'"a"' + b"x"]
    wrong += [asked.replace(b"}", b"," + asked[1:]) % (b'["a"]', b'["b"]')]
    if path != "/v1/embeddings":
        # TEI's paths name no model, so theirs is no field that could be wrong; nor has it the fields of OpenAI.
        wrong = [each for each in wrong if b'"model"' not in each]
    for raw in wrong:
        answer = api.call("POST", path, raw=raw)
        assert 400 <= answer.status < 500, (raw[:80], answer)
        assert error_of(path, answer), raw
    if path in {"/v1/embeddings", "/embed", "/"}:
        for empty in (b'""', b'["a",""]'):
            assert "length >= 1" in error_of(path, api.call("POST", path, raw=asked % empty))
    many = json.dumps(["a"] * 101).encode()
    answer = api.call("POST", path, raw=asked % (many if path != "/predict" else json.dumps([["a"]] * 101).encode()))
    assert answer.status == (400 if path.startswith("/v1") else 413), answer
    assert "101 in one call; at most 100" in error_of(path, answer)
    answer = api.call("POST", path, raw=asked % b'"a"', Content_Type="text/plain")
    assert (answer.status, bool(error_of(path, answer))) == (415, True)


def test_the_front_page_is_for_people_and_for_programs(api: Api) -> None:
    page = api.get("/", Accept="text/html,application/xhtml+xml")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"/docs" in page.body
    program = api.get("/")
    assert program.json["links"]["docs"] == "/docs"
    assert program.headers["vary"] == page.headers["vary"] == "Accept"


def test_the_reference_loads_nothing_from_elsewhere(api: Api) -> None:
    page = api.get("/docs")
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    text = page.body.decode()
    assert "http" not in text.replace("http-equiv", "")
    for part in ("docs.js", "swagger-ui-bundle.js", "swagger-ui.css", "root.css"):
        asset = api.get(f"/docs/static/{part}")
        assert asset.status == 200, part
        again = api.get(f"/docs/static/{part}", If_None_Match=asset.headers["etag"])
        assert (again.status, again.body) == (304, b"")
    assert api.get("/docs/static/none.js").status == 404


@pytest.fixture(scope="module")
def described(stack: Stack, api: Api) -> OpenApiSchema:
    return schemathesis.openapi.from_url(stack.url + "/openapi.json")


@pytest.mark.parametrize("operation", test_openapi.DOORS)
def test_requests_are_answered_as_described(described: OpenApiSchema, operation: str) -> None:
    # A model may refuse what its door takes, and whole numbers written as fractions are no tokens.
    test_openapi.check(described, operation, GenerationMode.POSITIVE, 15, [positive_data_acceptance])
    if operation.startswith("POST"):
        test_openapi.check(described, operation, GenerationMode.NEGATIVE, 15)
