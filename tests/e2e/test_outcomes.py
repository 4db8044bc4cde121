"""Each request in a batch gets its own outcome, whatever its neighbours do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery

from batching.request import OWN_METADATA
from tasks.celery.control_commands import RESET_FAULTS
from tests.e2e.client import Answer, Api
from tests.e2e.stack import Stack
from tests.integration.celery_harness import close_client, plain_client
from tests.models import BROKEN_SHAPES
from tests.waiting import PATIENCE_S


def batch_of(answers: list[Answer]) -> set[str]:
    """The batches that the answered ones were in."""
    return {answer.json["metadata"]["batch_id"] for answer in answers if answer.status == 200}


@pytest.fixture(scope="module")
def celery(stack: Stack) -> Iterator[Celery]:
    app = plain_client(stack.redis_url)
    yield app
    close_client(app)


@pytest.fixture(autouse=True)
def _breakers(celery: Celery) -> Iterator[None]:
    """Whole batches fail here, and most may be of one worker: a breaker that is half-open afterwards would let one
    request through as its trial.
    """
    yield
    told = celery.control.broadcast(RESET_FAULTS, {"model": "quartet"}, reply=True, timeout=PATIENCE_S, limit=2)
    assert len(told) == 2


def test_one_refused_input_harms_none_of_its_neighbours(api: Api) -> None:
    answers = api.all([{"n": 0}, {"n": 1}, {"reject": "not this one"}, {"n": 3}], "quartet")

    assert [answer.status for answer in answers] == [200, 200, 422, 200]
    assert len(batch_of(answers)) == 1
    assert [answers[n].json["output"] for n in (0, 1, 3)] == [{"echo": {"n": n}, "batch": 4} for n in (0, 1, 3)]
    assert answers[2].error == "INPUT_REJECTED"
    assert answers[2].json["message"] == "not this one"


def test_one_failed_output_harms_none_of_its_neighbours(api: Api) -> None:
    answers = api.all([{"n": 0}, {"fail": "out of luck"}, {"n": 2}, {"n": 3}], "quartet")

    assert [answer.status for answer in answers] == [200, 500, 200, 200]
    assert len(batch_of(answers)) == 1
    assert answers[1].error == "INFERENCE_FAILED"
    assert "out of luck" in answers[1].json["message"]


@pytest.mark.parametrize("shape", BROKEN_SHAPES)
def test_outputs_that_cannot_be_told_apart_are_nobodys(api: Api, shape: str) -> None:
    answers = api.all([{"n": 0}, {"return": shape}, {"n": 2}, {"n": 3}], "quartet")

    assert [answer.status for answer in answers] == [500] * 4
    assert {answer.error for answer in answers} == {"INFERENCE_FAILED"}
    assert all("4 inputs" in answer.json["message"] for answer in answers), answers[0].body


def test_an_array_whose_first_dimension_is_the_batch_is_an_output_each(api: Api) -> None:
    answers = api.all([{"n": 0}, {"return": "array"}, {"n": 2}, {"n": 3}], "quartet")
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[3].json["output"] == {"echo": {"n": 3}, "batch": 4}


def test_metadata_of_an_output_is_added_and_kept_with_the_answer(api: Api) -> None:
    question = {"tokens": 17, "nonce": uuid.uuid4().hex}
    first, again = api.infer(question, "counting").json, api.infer(question, "counting").json
    for answer in (first, again):
        assert answer["output"][0] == question
        assert answer["metadata"]["tokens_used"] == 17
        assert answer["metadata"]["batch_id"] != "mine"
        assert answer["metadata"].keys() - {"tokens_used"} <= OWN_METADATA, "a name of ours that a model could take"
    assert (first["metadata"]["cached"], again["metadata"]["cached"]) == (False, True)
    together = api.all([question | {"hold_on": 1, "sleep": 0.3}] * 3, "counting")
    assert [each.json["metadata"]["tokens_used"] for each in together] == [17] * 3


def test_bulk_and_polled_results_have_what_a_model_adds_alone(api: Api) -> None:
    question = {"tokens": 18, "nonce": uuid.uuid4().hex}
    body = {"model": "counting", "inputs": [question, "plain"]}
    first, again = (api.post("/v1/inference/bulk", body).json["results"] for _ in range(2))
    for with_tokens, plain in (first, again):
        assert with_tokens["metadata"] == {"tokens_used": 18}
        assert with_tokens["output"][0] == question
        assert plain.keys() == {"task_id", "output"}
    accepted = api.post("/v1/inference", {"input": question, "model": "counting"}, Prefer="respond-async")
    polled = api.outcome(accepted.json["task_id"])
    assert (polled["status"], polled["metadata"]) == ("SUCCESS", {"tokens_used": 18})


def test_a_model_that_broke_its_contract_goes_on(api: Api) -> None:
    api.all([{"return": "fewer"}, 1, 2, 3], "quartet")
    answers = api.all([1, 2, 3, 4], "quartet")
    assert [answer.json["output"] for answer in answers] == [{"echo": n, "batch": 4} for n in (1, 2, 3, 4)]


def test_a_model_that_raises_is_a_clear_error(api: Api) -> None:
    answer = api.infer({"raise": "the model is unwell"}, "moody")
    assert (answer.status, answer.error) == (500, "INFERENCE_FAILED")
    assert "the model is unwell" in answer.json["message"]
    # Where it happened is for the log, not for the caller.
    assert "Traceback" not in answer.json["message"]
    assert api.infer("fine", "moody").status == 200


def test_an_output_too_deep_for_its_readers_is_that_requests_error_alone(api: Api) -> None:
    for depth in (100, 900, 980, 990, 1000, 5000):
        deep, *others = api.all([{"nest": depth}, 1, 2, 3], "quartet")
        assert [other.status for other in others] == [200] * 3, depth
        assert deep.status == 200 if depth == 100 else deep.status in {200, 500}, (depth, deep)
    assert api.infer("fine").status == 200
