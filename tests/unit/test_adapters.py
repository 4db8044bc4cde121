"""The forms of other servers: what is sent for a batch, and what their answers mean."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from config.errors import SettingsError
from config.model_files.adapters import adapter_of
from config.process.devices import Machine, executor_count, placement
from config.secrets.masking import masked_url
from config.settings import ModelSettings, load_settings
from tests.waiting import PATIENCE_S
from workers.models import load_model
from workers.models.http import ApiError, ApiUnavailable


def called(
    source: str, answer: Callable[[Any], Any], inputs: list[Any], *parameters: dict[str, Any], **options: Any
) -> tuple[list[Any], list[tuple[str, Any]]]:
    """The outputs, and the address and body of each call."""
    seen: list[tuple[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        seen.append((str(request.url), body))
        return httpx.Response(200, json=answer(body))

    options["transport"] = httpx.MockTransport(handler)
    model = load_model(ModelSettings(name="m", source=source, options=options))
    model.load("cpu")
    return model.predict(inputs, list(parameters) or [{} for _ in inputs]), seen


def test_openai_embeddings_come_back_in_order_whatever_the_order_of_the_answer() -> None:
    def answer(body: Any) -> Any:
        rows = [{"index": n, "embedding": [float(len(text))]} for n, text in enumerate(body["input"])]
        return {"object": "list", "data": rows[::-1], "usage": {"prompt_tokens": 3}}

    outputs, seen = called("openai:https://api.example", answer, ["a", "bb"], model="text-embedding-3-small")
    assert outputs == [[1.0], [2.0]]
    assert seen == [
        (
            "https://api.example/v1/embeddings",
            {"encoding_format": "float", "model": "text-embedding-3-small", "input": ["a", "bb"]},
        )
    ]


def test_requests_that_differ_in_what_a_call_says_once_are_calls_of_their_own() -> None:
    def answer(body: Any) -> Any:
        return {"data": [{"index": n, "embedding": body["dimensions"]} for n in range(len(body["input"]))]}

    parameters = ({"dimensions": 8}, {"dimensions": 4}, {"dimensions": 8})
    outputs, seen = called("openai:http://h/v1/embeddings", answer, ["a", "b", "c"], *parameters)
    assert outputs == [8, 4, 8]
    assert sorted(body["input"] for _, body in seen) == [["a", "c"], ["b"]]


def test_calls_of_one_batch_are_made_together() -> None:
    together = threading.Barrier(4)

    def answer(body: Any) -> Any:
        together.wait(PATIENCE_S)
        return [{"index": 0, "score": float(body["query"])}]

    asked = [{"query": str(number), "text": "t"} for number in range(4)]
    outputs, calls = called("tei:http://a/rerank", answer, asked, timeout_ms=1000 * PATIENCE_S)
    assert len(calls) == 4
    assert [each["score"] if isinstance(each, dict) else each for each in outputs] == [0.0, 1.0, 2.0, 3.0]


def test_all_calls_of_one_batch_have_the_time_of_one() -> None:
    never = threading.Event()

    def answer(body: Any) -> Any:
        never.wait(PATIENCE_S)
        return []

    try:
        with pytest.raises(ApiUnavailable, match="in time"):
            called("tei:http://a/rerank", answer, [{"query": q, "text": "t"} for q in "ab"], timeout_ms=50)
    finally:
        never.set()


def test_tei_embeds_ranks_and_predicts_by_its_path() -> None:
    embedded, seen = called("tei:https://h", lambda body: [[1.0] for _ in body["inputs"]], ["a", "b"])
    assert embedded == [[1.0], [1.0]]
    assert seen == [("https://h/embed", {"inputs": ["a", "b"]})]

    pairs = [{"query": "q", "text": "x"}, {"query": "other", "text": "z"}, {"query": "q", "text": "yy"}]
    ranked, seen = called(
        "tei:https://h/rerank",
        lambda body: [{"index": n, "score": len(text)} for n, text in enumerate(body["texts"])][::-1],
        pairs,
    )
    assert ranked == [1, 1, 2]
    assert [body for _, body in seen] == [{"query": "q", "texts": ["x", "yy"]}, {"query": "other", "texts": ["z"]}]

    _, seen = called("tei:https://h/predict", lambda body: [[] for _ in body["inputs"]], ["a", ["b", "c"]])
    assert seen == [("https://h/predict", {"inputs": [["a"], ["b", "c"]]})]


@pytest.mark.parametrize(
    ("inputs", "shape", "datatype", "data"),
    [
        (["a", "b"], [2], "BYTES", ["a", "b"]),
        ([1, 2], [2], "INT64", [1, 2]),
        ([[1, 2.5], [3, 4]], [2, 2], "FP32", [1, 2.5, 3, 4]),
        ([[[1], [2]]], [1, 2, 1], "INT64", [1, 2]),
        ([True], [1], "BOOL", [True]),
    ],
)
def test_kserve_gets_a_tensor_of_the_rows(inputs: list[Any], shape: list[int], datatype: str, data: list[Any]) -> None:
    answer = {
        "outputs": [{"name": "o", "shape": [len(inputs), 2], "datatype": "FP32", "data": [0.5] * 2 * len(inputs)}]
    }
    outputs, seen = called("kserve:http://h", lambda body: answer, inputs)
    assert outputs == [[0.5, 0.5]] * len(inputs)
    tensor = {"name": "input", "shape": shape, "datatype": datatype, "data": data}
    assert seen == [("http://h/v2/models/m/infer", {"inputs": [tensor]})]


def test_several_tensors_are_dicts_by_name_both_ways() -> None:
    def answer(body: Any) -> Any:
        return {
            "outputs": [
                {"name": "label", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]},
                {"name": "score", "shape": [2, 1, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
            ]
        }

    rows = [{"ids": [1, 2], "mask": [1, 1]}, {"ids": [3, 4], "mask": [1, 0]}]
    outputs, seen = called("kserve:http://h/v2/models/bert/infer", answer, rows)
    assert outputs == [{"label": "x", "score": [[1, 2]]}, {"label": "y", "score": [[3, 4]]}]
    assert [(each["name"], each["data"]) for each in seen[0][1]["inputs"]] == [
        ("ids", [1, 2, 3, 4]),
        ("mask", [1, 1, 1, 0]),
    ]


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("openai:http://h", {"data": [{"index": 0, "embedding": [1]}]}),
        ("openai:http://h", {"error": "no"}),
        ("openai:http://h", [1, 2]),
        ("tei:http://h", {"outputs": [1, 2]}),
        ("tei:http://h", [[1.0]]),
        ("tei:http://h/rerank", [{"index": 0}]),
        ("kserve:http://h", {"outputs": []}),
        ("kserve:http://h", {"outputs": [{"name": "o", "shape": [3], "data": [1, 2, 3]}]}),
        ("kserve:http://h", {"outputs": [{"name": "o", "shape": [2, 2], "data": [1, 2, 3]}]}),
        ("kserve:http://h", {"outputs": [{"name": "o", "shape": [2], "data": []}]}),
    ],
)
def test_an_answer_of_another_form_is_the_apis_error(source: str, answer: Any) -> None:
    with pytest.raises(ApiError, match="must answer"):
        called(
            source, lambda body: answer, [{"query": "q", "text": n} for n in "ab"] if "rerank" in source else ["a", "b"]
        )


def test_replicas_have_executors_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text(
        '[models.m]\nsource = "tei:http://a"\nurls = ["http://b", "tei:http://a", "http://u:p@c"]\ninstances = 2\n'
    )
    model = load_settings({}, str(path)).models["m"]
    assert model.replicas == ("tei:http://a", "tei:http://b", "tei:http://u:p@c")
    machine = Machine()
    placed = [placement(model, None, n, machine) for n in range(executor_count(model, None, machine))]
    assert [str(each) for each in placed] == ["tei:http://a", "tei:http://b", "tei:http://u:…@c"] * 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('source = "http://a"\nurls = ["ftp://b"]', "urls = 'ftp://b': must be URLs like the source"),
        ('source = "tei:http://a"\nurls = ["openai:http://b"]', "must be URLs"),
        ('source = "a:B"\nurls = ["http://b"]', "[models.m] urls"),
        ('source = "a:B"\nca_file = "ca.pem"', "ca_file"),
        ('source = "http://a"\nca_file = "ca.pem"', "has no effect on http://a"),
        ('source = "https://a"\nkey_file = "k.pem"', "set cert_file as well"),
        ('source = "https://a"\nca_file = "ca.pem"\noptions = { verify = false }', "remove verify"),
        ('source = "tei:http://a"\ndirect = true', "direct"),
        ('source = "tgi:http://a"', "one of openai, tei, kserve in front of an http(s) URL"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, keys: str, said: str) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text(f"[models.m]\n{keys}\n")
    with pytest.raises(SettingsError) as raised:
        load_settings({}, str(path))
    assert [each for each in raised.value.problems if said in str(each)], raised.value.problems


@pytest.mark.parametrize(
    "url", ["http://h:80a", "tei:https://[::1", "http://h:99999", "http://h:0", "http://:80", "http://u:s3/cret@h"]
)
@pytest.mark.parametrize("key", ["source", "urls"])
def test_a_url_that_cannot_be_called_is_named_with_its_fix_and_no_secret(tmp_path: Path, key: str, url: str) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text(f'[models.m]\nsource = "{url}"' if key == "source" else f'[models.m]\nurls = ["http://a", "{url}"]')
    with pytest.raises(SettingsError, match=rf"models\.m\] {key}.*a port from 1 to 65535") as refused:
        load_settings({}, str(path))
    assert "s3" not in str(refused.value)
    assert "cret" not in str(refused.value)


def test_urls_alone_are_a_source(tmp_path: Path) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text('[models.m]\nurls = ["https://a", "https://b"]\nca_file = "ca.pem"\n')
    model = load_settings({}, str(path)).models["m"]
    assert (model.source, model.replicas) == ("https://a", ("https://a", "https://b"))
    assert model.ca_file == str(tmp_path / "ca.pem")


def test_a_source_without_an_adapter_has_none_and_secrets_are_masked_with_one() -> None:
    assert adapter_of("https://a/x") == (None, "https://a/x")
    assert adapter_of("a.b:C") == (None, "a.b:C")
    assert masked_url("kserve:https://u:secret@h/x?token=y") == "kserve:https://u:…@h/x?token=…"
