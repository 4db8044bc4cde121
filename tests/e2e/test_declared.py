"""A model that declares its input is never asked anything else."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from tests.e2e.client import Api

MODEL = "picky"


def test_what_is_declared_is_served(api: Api) -> None:
    value = {"text": "hello", "tags": ["a", "b"]}
    answer = api.infer(value, MODEL, parameters={"top": 3})
    assert (answer.status, answer.json["output"]) == (200, value)
    assert api.post("/v1/predict", {"model_id": MODEL, "input_data": value}).json["output"] == value


@pytest.mark.parametrize(
    ("value", "parameters", "says"),
    [
        ("hello", {}, 'input: the value is not of type "object"'),
        ({}, {}, 'input: "text" is a required property'),
        ({"text": 5}, {}, 'input.text: the value is not of type "string"'),
        ({"text": "x" * 100_000}, {}, "input.text: the value is longer than 20 characters"),
        ({"text": "a", "tags": ["a", "B"]}, {}, "input.tags[1]: the value does not match"),
        ({"text": "a"}, {"top": 0}, "parameters.top: the value is less than the minimum of 1"),
        ({"text": "a"}, {"tip": 1}, "parameters: Additional properties are not allowed ('tip' was unexpected)"),
        ({"text": "a", "\r\nSet-Cookie: x" + "y" * 100_000: 1}, {}, "input: Additional properties"),
    ],
)
def test_anything_else_is_refused_with_where_it_is_wrong(
    api: Api, store: Redis, value: object, parameters: dict[str, int], says: str
) -> None:
    for headers in ({}, {"Prefer": "respond-async"}):
        body = {"input": value, "model": MODEL, "parameters": parameters}
        answer = api.post("/v1/inference", body, **headers)
        assert (answer.status, answer.error) == (400, "INVALID_INPUT")
        assert answer.json["message"].startswith(says)
        # Whatever was sent, not all of it comes back.
        assert len(answer.body) < 600
    # Nothing of it was queued.
    assert not store.keys(f"bunch.{MODEL}.*")


def test_of_many_inputs_only_the_wrong_ones_fail(api: Api) -> None:
    inputs = [{"text": "a"}, {"text": 1}, {"text": "b"}]
    answer = api.post("/v1/inference/bulk", {"inputs": inputs, "model": MODEL})
    first, second, third = answer.json["results"]
    assert (answer.status, first["output"], third["output"]) == (200, inputs[0], inputs[2])
    assert second == {"error": "INVALID_INPUT", "message": second["message"]}
    assert second["message"].startswith('inputs[1].text: the value is not of type "string"')
    refused = api.post("/v1/inference/bulk", {"inputs": inputs, "model": MODEL, "parameters": {"top": "all"}})
    assert (refused.status, refused.error) == (400, "INVALID_INPUT")


def test_models_are_listed_with_what_they_take(api: Api) -> None:
    document = api.get("/v1/models").json
    rows = {row["id"]: row for row in document["data"]}
    assert document["object"] == "list"
    assert next(iter(rows)) == "echo"
    assert {row["object"] for row in rows.values()} == {"model"}
    assert rows[MODEL]["input_schema"]["properties"]["text"]["maxLength"] == 20
    assert rows[MODEL]["parameters_schema"]["additionalProperties"] is False
    assert "input_schema" not in rows["echo"]


def test_the_description_of_the_api_has_it(api: Api) -> None:
    text = api.get("/openapi.json").body
    components = json.loads(text)["components"]["schemas"]
    assert components["picky.input"]["properties"]["text"]["maxLength"] == 20
    (rule,) = components["InferenceBody"]["allOf"]
    assert rule["if"] == {"properties": {"model": {"const": MODEL}}, "required": ["model"]}
    assert rule["then"]["properties"]["input"] == {"$ref": "#/components/schemas/picky.input"}


@pytest.mark.parametrize("value", [5, None, True, ["a"], {"text": "a"}])
def test_a_function_takes_strings_and_the_door_says_so(api: Api, value: object) -> None:
    told = "shout takes strings"
    answer = api.infer(value, "shout")
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert answer.json["message"].startswith(f"input: {told}")
    answer = api.post("/v1/predict", {"model_id": "shout", "input_data": value})
    assert answer.status == 400
    assert answer.json["message"].startswith(f"input_data: {told}")
    fine, wrong = api.post("/v1/inference/bulk", {"model": "shout", "inputs": ["a", value]}).json["results"]
    assert fine["output"] == "A"
    assert (wrong["error"], wrong["message"].partition(";")[0]) == ("INVALID_INPUT", f"inputs[1]: {told}")
    assert "task_id" not in wrong, "nothing was queued for it"
