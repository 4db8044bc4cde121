"""The API keeps to its own description, whatever it is sent."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.waiting import PATIENCE_S

OPERATIONS = (
    *("POST /v1/inference", "POST /v1/inference/bulk", "POST /v1/predict", "POST /api/inference"),
    *("GET /v1/result/{task_id}", "DELETE /v1/result/{task_id}", "GET /internal/requests/{request_id}"),
    *("GET /internal/health", "GET /internal/scale", "GET /healthz", "GET /readyz", "GET /metrics"),
    "GET /v1/models",
    "GET /openapi.json",
    "GET /",
)
# `test_doors` has models for them.
DOORS = (
    *("POST /v1/embeddings", "POST /v1/rerank", "POST /embed", "POST /", "POST /rerank", "POST /predict"),
    *("GET /v1/models/{model_id}", "GET /info", "GET /health"),
)
KSERVE = (
    *("GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models", "GET /v2/models/stats"),
    *("POST /v2/repository/index", "POST /v2/repository/models/{model}/load"),
    "POST /v2/repository/models/{model}/unload",
    *(
        f"{method} /v2/models/{{model}}{version}{part}"
        for method, part in (("GET", ""), ("GET", "/ready"), ("GET", "/config"), ("GET", "/stats"), ("POST", "/infer"))
        for version in ("", "/versions/{version}")
    ),
)
# In the others no request has the wrong form: any text is an id, though one that nobody has.
WITH_INVALID_REQUESTS = (*OPERATIONS[:4], "GET /v1/result/{task_id}")


@pytest.fixture(scope="module")
def described(stack: Stack) -> OpenApiSchema:
    return schemathesis.openapi.from_url(stack.url + "/openapi.json")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_valid_requests_are_answered_as_described(described: OpenApiSchema, operation: str) -> None:
    check(described, operation, GenerationMode.POSITIVE)


@pytest.mark.parametrize("operation", ["GET /v2", "GET /v2/models/{model}", "POST /v2/models/{model}/infer"])
def test_tensors_and_models_are_asked_for_as_described(described: OpenApiSchema, operation: str) -> None:
    # The form that the description has is not all that a model asks of its tensors.
    check(described, operation, GenerationMode.POSITIVE, 15, [positive_data_acceptance])
    if operation.startswith("POST"):
        check(described, operation, GenerationMode.NEGATIVE, 30)


@pytest.mark.parametrize("operation", WITH_INVALID_REQUESTS)
def test_invalid_requests_are_refused_as_described(described: OpenApiSchema, operation: str) -> None:
    check(described, operation, GenerationMode.NEGATIVE)


def check(
    described: OpenApiSchema, operation: str, mode: GenerationMode, examples: int = 50, excluded: Sequence[Any] = ()
) -> None:
    method, path = operation.split()

    @given(case=described[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE:
            # A schema cannot say which hosts are allowed, nor that a caller who waits has no callback.
            _without(case.body, "callback_url")
            _without(case.headers, "Callback-URL")
        # Status, content type, schema, headers, what is refused and what is not.
        response = case.call_and_validate(excluded_checks=[not_a_server_error, *excluded], timeout=PATIENCE_S)
        # Some ask for an answer in no time at all.
        assert response.status_code < 500 or response.status_code == 504, response.text

    run()


def _without(members: Any, name: str) -> None:
    if isinstance(members, MutableMapping):
        members.pop(name, None)


def test_the_description_names_every_endpoint(api: Api) -> None:
    document = api.get("/openapi.json").json
    assert {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item} == {
        *OPERATIONS,
        *DOORS,
        *KSERVE,
    }
