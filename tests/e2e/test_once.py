"""The same question, asked again and by many, of a model that counts what it sees."""

from __future__ import annotations

import uuid

import pytest

from tests.e2e.client import Answer, Api


@pytest.fixture
def question() -> str:
    """Nobody has asked it yet."""
    return str(uuid.uuid4())


def output(answer: Answer) -> bytes:
    """As it came, not as it reads."""
    return answer.body.split(b'"output":')[1].split(b',"latency_ms"')[0]


def test_a_kept_answer_is_the_same_bytes_and_says_so(api: Api, question: str) -> None:
    value = {"é": question, "n": 1.50}
    first, again = api.infer(value, "counting"), api.infer(dict(reversed(value.items())), "counting")
    assert (first.json["metadata"]["cached"], again.json["metadata"]["cached"]) == (False, True)
    assert output(again) == output(first)
    assert again.json["task_id"] != first.json["task_id"]
    assert again.json["metadata"]["batch_id"] == first.json["metadata"]["batch_id"]
    assert again.json["metadata"].keys() == first.json["metadata"].keys()
    assert api.result(again.json["task_id"])["output"] == first.json["output"]


def test_it_can_be_asked_for_later(api: Api, question: str) -> None:
    first = api.infer(question, "counting")
    assert api.result(api.later(question, "counting"), wait_ms=5000)["output"] == first.json["output"]


@pytest.mark.parametrize("control", ["no-cache", "max-age=0, No-Store"])
def test_a_caller_may_want_it_computed(api: Api, question: str, control: str) -> None:
    body = {"input": question, "model": "counting"}
    first = api.post("/v1/inference", body)
    fresh = api.post("/v1/inference", body, Cache_Control=control)
    assert not fresh.json["metadata"]["cached"]
    assert fresh.json["metadata"]["batch_id"] != first.json["metadata"]["batch_id"]
    bulk = {"inputs": [question], "model": "counting"}
    kept = api.post("/v1/inference/bulk", bulk)
    assert kept.json["results"][0]["output"] == first.json["output"]


def test_a_model_that_did_not_ask_for_it_computes_each(api: Api, question: str) -> None:
    answers = [api.infer(question, "moody") for _ in range(2)]
    assert not any(each.json["metadata"]["cached"] for each in answers)
    assert len({each.json["metadata"]["batch_id"] for each in answers}) == 2
