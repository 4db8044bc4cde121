"""The doors of other APIs without a stack: what they read of a body, their errors, and how vectors become base64."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bunch import Output
from config.errors import SettingsError
from config.model_files.sources import class_literals
from config.settings import ModelSettings, Settings, load_settings
from config.tiers import Tier
from tasks.errors import InferenceFailed
from tasks.observability import metrics
from tasks.protocol.results import Reply
from tests.unit.computing import Model, outputs, run
from webapp.api.doors import openai, rerank, tei
from webapp.api.doors import outputs as forms
from webapp.api.doors.envelopes import openai_error, rerank_error, tei_error
from webapp.api.doors.inputs import texts, with_dimensions
from webapp.app import create_app, make_services
from webapp.errors import STATUS_OF, ApiError
from webapp.model_tasks import ModelTasks, Served
from webapp.observability.metrics import RequestTallies
from webapp.routes import ROUTES
from workers.executor.compute import BatchComputer
from workers.models.minilm import MiniLM

TEXTS_ONLY, ANY = Served("m", ("embed",)), Served("m", ("embed",), accepts_tokens=True, accepts_dimensions=True)

# As the clients sent them: the SDK of OpenAI and LangChain, LlamaIndex, huggingface_hub, LlamaIndex's reranker.
CAPTURED: list[tuple[bytes, type[msgspec.Struct]]] = [
    (b'{"input":["a","b"],"model":"m","encoding_format":"base64"}', openai.EmbeddingsBody),
    (b'{"input":[[9906,1917]],"model":"m","encoding_format":"base64"}', openai.EmbeddingsBody),
    (b'{"inputs": ["a"], "truncate": true}', tei.EmbedBody),
    (b'{"inputs":"a","normalize":true,"truncate":true}', tei.EmbedBody),
    (b'{"query": "a", "texts": ["b"], "raw_scores": false, "return_text": false, "truncate": true}', tei.TeiRerankBody),
    (b'{"query":"a","documents":["b"],"top_n":2,"model":"m","return_documents":true}', rerank.RerankBody),
]


@pytest.mark.parametrize(("raw", "kind"), CAPTURED)
def test_what_clients_send_is_read(raw: bytes, kind: type[msgspec.Struct]) -> None:
    body = msgspec.json.decode(raw, type=kind)
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    assert given == json.loads(raw)


def test_a_field_that_is_not_given_is_none() -> None:
    # Otherwise a body with a name twice would have as many fields as colons (`has_doubled_names`).
    for route in ROUTES:
        for field in msgspec.structs.fields(route.body) if route.body else ():
            assert field.required or field.default is None, (route.path, field.name)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_an_input_is_one_text_or_several(given: Any, found: list[Any]) -> None:
    assert texts(given, "input", ANY) == found


@pytest.mark.parametrize("given", [["a", 1], [1, [2]], ["a", [1]]])
def test_an_input_of_several_kinds_is_refused(given: Any) -> None:
    with pytest.raises(ApiError, match="input: a list holds either"):
        texts(given, "input", ANY)


def test_what_a_model_does_not_take_is_refused_with_what_to_set() -> None:
    for given in ([1, 2], [[1], [2]]):
        with pytest.raises(ApiError, match=r"input: m takes texts.*check_embedding_ctx_length=False.*accepts_tokens"):
            texts(given, "input", TEXTS_ONLY)
    with pytest.raises(ApiError, match=r"dimensions: m has one size.*accepts_dimensions"):
        with_dimensions(None, 5, TEXTS_ONLY)
    assert with_dimensions({"a": 1}, 5, ANY) == {"a": 1, "dimensions": 5}


@pytest.mark.parametrize("code", STATUS_OF)
def test_an_error_has_the_form_of_its_door_and_the_same_cause(code: str) -> None:
    headers = (("Allow", "POST"),)
    answers = {
        envelope: envelope(code, "input[1]: wrong", "id", retry_after_s=1.5, headers=headers)
        for envelope in (openai_error, rerank_error, tei_error)
    }
    for envelope, answer in answers.items():
        assert dict(answer.headers)["Allow"] == "POST"
        assert dict(answer.headers)["Retry-After"] == "2"
        if envelope is not tei_error:
            assert answer.status == STATUS_OF[code]
    (error,) = json.loads(answers[openai_error].body).values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == {400: "input[1]", 404: "model" if code == "UNKNOWN_MODEL" else None}.get(STATUS_OF[code])
    assert dict(answers[openai_error].headers)["retry-after-ms"] == "1500"
    assert json.loads(answers[rerank_error].body).items() >= {"message": "input[1]: wrong", "code": code}.items()
    assert json.loads(answers[tei_error].body)["error"] == "input[1]: wrong"


def test_tei_has_statuses_of_its_own() -> None:
    codes = ("INVALID_INPUT", "INPUT_REJECTED", "PAYLOAD_TOO_LARGE", "UNKNOWN_MODEL", "INFERENCE_FAILED")
    codes += ("SERVICE_OVERLOADED", "RATE_LIMITED", "BACKEND_UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED")
    answers = [tei_error(code, "", "id") for code in codes]
    assert [answer.status for answer in answers] == [422, 422, 413, 424, 424, 429, 429, 503, 504, 401]
    kinds = [json.loads(answer.body)["error_type"] for answer in answers]
    assert kinds == [
        *("validation", "tokenizer", "validation", "backend", "backend", "overloaded", "overloaded", "unhealthy"),
        *("backend", "validation"),
    ]


def test_openai_s_clients_try_again_only_where_that_may_help() -> None:
    def retries(code: str, retry_after_s: float | None = None) -> str:
        return dict(openai_error(code, "", "id", retry_after_s=retry_after_s).headers)["x-should-retry"]

    for code in ("SERVICE_OVERLOADED", "RATE_LIMITED", "BACKEND_UNAVAILABLE", "SHUTTING_DOWN"):
        assert retries(code, 1.0) == "true"
        # They would not wait for so long, but come back within seconds.
        assert retries(code, 61.0) == "false"
    # No time helps.
    assert (retries("RATE_LIMITED"), retries("SHUTTING_DOWN")) == ("false", "true")
    for code in ("INFERENCE_FAILED", "DEADLINE_EXCEEDED", "IDEMPOTENCY_CONFLICT", "CANCELLED", "INTERNAL"):
        assert retries(code) == "false"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/embed", "/rerank", "/predict", "/", "/v1/models"])
def test_a_stranger_is_refused_in_the_form_of_the_door(path: str) -> None:
    model = ModelSettings(name="m", source="a:B")
    # Nobody connects to it.
    settings = Settings(redis_url="redis://127.0.0.1:1", auth="keys", models={"m": model}, default_model="m")
    client = create_app(make_services(settings)).test_client()
    method = "GET" if path == "/v1/models" else "POST"
    answer = client.open(path, method=method, data=b"{}", content_type="application/json")
    assert answer.status_code == 401
    assert "WWW-Authenticate" in answer.headers
    document = answer.json
    assert document is not None
    if path in {"/v1/embeddings", "/v1/models"}:
        assert document["error"]["code"] == "invalid_api_key"
    elif path == "/v1/rerank":
        assert document["code"] == "UNAUTHENTICATED"
    else:
        assert document["error_type"] == "validation"
    assert client.open(path, method="PATCH").status_code == 405


def reply(result: bytes, bunch: bytes = b"{}") -> Reply:
    return Reply("id", "SUCCESS", msgspec.Raw(result), msgspec.Raw(bunch))


def test_a_vector_stays_as_it_was_encoded() -> None:
    assert forms.vector(reply(b"[0.5,-1e-3]"), "m") == b"[0.5,-1e-3]"
    assert forms.packed_vector(reply(b'"AAAAPw=="'), "m") == b'"AAAAPw=="'
    # A model that was asked directly knows no base64.
    assert forms.packed_vector(reply(b"[0.5,2]"), "m") == b'"AAAAPwAAAEA="'


@pytest.mark.parametrize("result", [b"null", b"{}", b'{"a":[1]}', b"[]", b"[[1]]", b'["a"]', b"1", b'"text"'])
def test_an_output_that_is_no_vector_is_the_model_s_fault(result: bytes) -> None:
    with pytest.raises(InferenceFailed, match="m has the task embed"):
        forms.vector(reply(result), "m")


def test_a_number_that_float32_does_not_have_is_no_infinity() -> None:
    with pytest.raises(InferenceFailed, match="too large for float32"):
        forms.packed_vector(reply(b"[1e300]"), "m")


def test_scores_are_numbers_and_equal_ones_keep_their_order() -> None:
    assert forms.score(reply(b"1"), "m") == 1.0
    for result in (b'"1"', b"null", b"[1]"):
        with pytest.raises(InferenceFailed, match="m has the task rerank"):
            forms.score(reply(result), "m")
    assert forms.best_first([0.5, 2.0, 0.5, 1.0]) == [1, 3, 0, 2]


def test_tokens_are_counted_as_far_as_the_model_tells_them() -> None:
    bunch = [b'{"tokens_used":3}', b'{"tokens_used":"many"}', b"{}", b'{"tokens_used":true,"truncated":true}']
    told = [forms.told_of(reply(b"1", each)) for each in bunch]
    assert forms.tokens_of(told) == 3
    assert [each.truncated for each in told] == [False, False, False, True]


PACKED = b'{"encoding_format":"base64","other":1}'


def floats(packed: bytes) -> tuple[float, ...]:
    data = base64.b64decode(msgspec.json.decode(packed))
    return struct.unpack(f"<{len(data) // 4}f", data)


def test_the_executor_makes_a_vector_base64_where_its_request_asks_for_that() -> None:
    seen: list[dict[str, Any]] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        seen.extend(parameters)
        return [Output([0.5, -2], {"tokens_used": 1}) for _ in inputs]

    computer = BatchComputer(Model(predict), packs=True)
    done = run(computer, b"1", b"2", parameters=[PACKED, b"{}"])
    packed, plain = outputs(done)
    assert floats(packed) == (0.5, -2.0)
    assert plain == b"[0.5,-2]"
    assert done.outcomes[0].metadata == b'"tokens_used":1'
    assert seen == [{"other": 1}, {}], "the model does not see what is not for it"


def test_the_parameter_is_the_model_s_own_where_it_does_not_embed() -> None:
    done = run(BatchComputer(Model(lambda inputs, parameters: parameters)), b"1", parameters=[PACKED])
    assert outputs(done) == [PACKED]


@pytest.mark.parametrize("output", [{"a": 1}, "text", ["a"], [[1.0]], None, 3])
def test_what_is_no_vector_is_encoded_as_it_is(output: Any) -> None:
    done = run(BatchComputer(Model(lambda inputs, parameters: [output]), packs=True), b"1", parameters=[PACKED])
    assert outputs(done) == [msgspec.json.encode(output)]


def test_a_vector_that_is_not_finite_fails_as_in_json() -> None:
    for number in (float("nan"), float("inf")):
        computer = BatchComputer(Model(lambda inputs, parameters, number=number: [[1.0, number]]), packs=True)
        (outcome,) = run(computer, b"1", parameters=[PACKED]).outcomes
        assert "NaN or Infinity" in outcome.message


def test_arrays_are_packed_too() -> None:
    import numpy as np

    computer = BatchComputer(Model(lambda inputs, parameters: np.ones((len(inputs), 3), "f4")), packs=True)
    assert [floats(each) for each in outputs(run(computer, b"1", b"2", parameters=[PACKED] * 2))] == [(1.0,) * 3] * 2


MODULE = """
from elsewhere_here import Base, Other as Renamed

LIMIT = 5

class Plain(Base):
    accepts_tokens = False
    accepts_tokens = True
    description: str = "plain"
    max_input_length = LIMIT

class Below(Plain, Renamed):
    tasks: list[str] = ["rerank"]

class Called(make()):
    pass

Alias = Plain
"""
BASES = 'class Base:\n    tasks = ("embed",)\n    accepts_dimensions = True\nclass Other(Base):\n    extra = 1\n'


def test_what_a_class_declares_is_read_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "models_here.py").write_text(MODULE)
    (tmp_path / "elsewhere_here.py").write_text(BASES)
    names = ("tasks", "accepts_tokens", "accepts_dimensions", "max_input_length", "description", "extra")

    def read(name: str) -> dict[str, Any]:
        return class_literals(f"models_here:{name}", [str(tmp_path)], names)

    plain = {"tasks": ("embed",), "accepts_tokens": True, "accepts_dimensions": True, "description": "plain"}
    assert read("Plain") == plain
    assert read("Below") == plain | {"tasks": ["rerank"], "extra": 1}
    assert read("Called") == read("Alias") == read("Nothing") == {}
    assert class_literals("nowhere_here:Plain", [str(tmp_path)], names) == {}
    (tmp_path / "models_here.py").write_text("from models_here import Plain\nclass Turn(Turn): pass\n")
    assert read("Plain") == read("Turn") == {}, "circles end"


def served(**models: tuple[str, list[str] | None]) -> ModelTasks:
    settings = {name: ModelSettings(name=name, source=source, tasks=tasks) for name, (source, tasks) in models.items()}
    return ModelTasks(Settings(models=settings, default_model=list(models)[-1]))


def test_the_default_model_answers_if_it_has_the_task_else_the_first_that_has() -> None:
    minilm, echo = "workers.models.minilm:MiniLM", "workers.models.echo:Echo"
    tasks = served(other=(minilm, None), mine=("https://example.org/", ["embed"]), last=(echo, None))
    assert [each.name for each in tasks] == ["last", "other", "mine"]
    assert tasks.serving("embed").name == tasks.serving("rerank").name == "other"
    assert tasks.require("mine", "embed").tasks == ("embed",)
    assert tasks["other"].max_input_length == MiniLM.max_input_length
    with pytest.raises(ApiError, match=r'last does not answer here; that needs tasks = \["embed"\]'):
        tasks.require("last", "embed")
    with pytest.raises(ApiError, match=r'one needs tasks = \["classify"\]'):
        tasks.serving("classify")
    # The file has the last word.
    assert served(m=(minilm, []))["m"].tasks == ()
    assert served(m=(minilm, ["rerank"])).serving("rerank").name == "m"


def test_a_task_that_there_is_not_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text('[models.m]\nsource = "a:B"\ntasks = ["embedd"]\n')
    with pytest.raises(SettingsError, match=r"\[models.m\] tasks"):
        load_settings({}, str(path))


def test_the_table_of_clients_is_that_of_what_is_tried() -> None:
    root = Path(__file__).parents[2]
    table = (root / "docs" / "clients.md").read_text(encoding="utf-8").partition("<!-- clients: begin -->")[2]
    pins = [set(each.read_text().split()) for each in (root / "tests" / "clients").glob("*/requirements.txt")]
    assert len(pins) >= 8
    listed = [set(re.findall(r"`([^`]+==[^`]+)`", row)) for row in table.splitlines() if row.startswith("| `")]
    assert sorted(map(sorted, listed)) == sorted(map(sorted, pins))


def test_requests_are_counted_by_door() -> None:
    tallies = RequestTallies(Settings())
    for door in ("openai", "openai", "tei"):
        tallies.count("by-door", Tier.PAID, "OK", 0.01, door=door)
    tallies.count("by-door", Tier.PAID, "OK", 0.01)
    tallies.hand_over()
    counted = [
        metrics.REQUESTS.labels("by-door", "paid", "OK", door)._value.get()
        for door in ("openai", "tei", "rerank", "bunch")
    ]
    assert counted == [2, 1, 0, 1]
