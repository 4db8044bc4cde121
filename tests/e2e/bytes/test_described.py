"""The description of bodies and answers that are bytes is true."""

from __future__ import annotations

import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.e2e.test_openapi import check


def test_the_description_has_the_bodies_that_the_models_take(api: Api) -> None:
    document = api.get("/openapi.json").json
    operation = document["paths"]["/v1/inference"]["post"]
    taken = {"application/octet-stream", "application/x-npy", "application/vnd.apache.arrow.stream", "image/*"}
    assert taken <= operation["requestBody"]["content"].keys()
    named = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
    assert named == {"model", "parameters", "timeout_ms", "client_id"}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_it_is_as_described(stack: Stack, mode: GenerationMode) -> None:
    # It cannot say which model takes which body.
    excluded = [positive_data_acceptance] if mode is GenerationMode.POSITIVE else []
    check(schemathesis.openapi.from_url(stack.url + "/openapi.json"), "POST /v1/inference", mode, 25, excluded)


def test_what_a_model_takes_is_listed(api: Api) -> None:
    rows = {each["id"]: each.get("input_type") for each in api.get("/v1/models").json["data"]}
    assert (rows["described"], rows["arrays"], rows["tables"], rows["echo"]) == ("bytes", "npy", "arrow", None)
