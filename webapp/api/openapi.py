"""`GET /openapi.json`: the description of the API, from which clients can be generated. `webapp.api.schemas` has the
schemas of the bodies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from config.settings import Settings
from webapp.api.schemas import components
from webapp.errors import STATUS_OF
from webapp.identity.base import Access, access_of
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_FAILURES = (400, 404, 409, 413, 415, 422, 429, 500, 503, 504)


def document(services: Services, call: HttpRequest) -> HttpResponse:
    services.description = services.description or msgspec.json.encode(describe(services.settings))
    return HttpResponse(200, services.description, call.request_id)


def describe(settings: Settings) -> dict[str, Any]:
    """The document, OpenAPI 3.1, with the schemas of each model, and with security if callers need credentials."""
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Bunch", "version": "1", "description": "Dynamic batching for GPU models."},
        "paths": {**_inference_paths(), **_result_paths(), **_other_paths()},
        "components": {"schemas": components(settings)},
    }
    return _on_loopback(description) if settings.auth == "off" else _secured(description)


def _on_loopback(description: dict[str, Any]) -> dict[str, Any]:
    """The description without security: programs on this machine may call, others get 403."""
    for path, item in description["paths"].items():
        if access_of(path) is not Access.PUBLIC:
            for operation in item.values():
                operation["responses"] |= _errors(403)
    return description


def _secured(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the credential of each path, and its refusals."""
    for path, item in description["paths"].items():
        access = access_of(path)
        if access is Access.PUBLIC:
            continue
        statuses = (401, 403, 429) if access is Access.OPERATOR else (401, 429)
        for operation in item.values():
            operation["security"] = [{"bearer": []}]
            operation["responses"] |= _errors(*statuses)
    scheme = {"type": "http", "scheme": "bearer", "description": "An API key, a JSON Web Token or a service token."}
    description["components"]["securitySchemes"] = {"bearer": scheme}
    return description


def _inference_paths() -> dict[str, Any]:
    infer = _post("infer", "InferenceBody", "Inference", "One input, its own output.", *_FAILURES)
    infer["parameters"] = [
        _parameter("Prefer", "header", {"type": "string"}, "respond-async: answer 202 once it is queued"),
        *_common_headers(),
    ]
    infer["responses"]["202"] = {
        **_answer("Accepted", "Queued; poll the URL in Location."),
        "headers": {"Location": {"description": "URL of the result", "schema": {"type": "string"}}},
        "links": _links_to_result("$response.body#/task_id"),
    }
    infer["responses"]["200"]["links"] = {
        "life": _link("get_request", "request_id", "$response.body#/request_id", "The stages of the request.")
    }
    bulk = _post("infer_bulk", "BulkBody", "Bulk", "Many inputs, answers in order.", 400, 404, 409, 413, 415, 429, 503)
    bulk["parameters"] = _common_headers()
    predict = _post("predict", "PredictBody", "Plain", "Like /v1/inference, with other field names.", *_FAILURES)
    simple = _post("infer_text", "SimpleBody", "Plain", "A string for the default model.", *_FAILURES)
    for operation in (predict, simple):
        operation["parameters"] = _common_headers()
    return {
        "/v1/inference": {"post": infer},
        "/v1/inference/bulk": {"post": bulk},
        "/v1/predict": {"post": predict},
        "/api/inference": {"post": simple},
    }


def _result_paths() -> dict[str, Any]:
    task_id = _parameter("task_id", "path", {"type": "string", "minLength": 1}, "task id from the 202 answer")
    wait = _parameter("wait_ms", "query", {"type": "number", "minimum": 0}, "how long to wait for the result")
    forget = _parameter("forget", "query", {"type": "boolean"}, "delete the outcome once it is returned")
    result = _get("get_result", "Result", "State and outcome.", 400, 404, 503)
    cancel = _get("cancel_result", "Cancelled", "Cancel a request that has not started.", 404, 409, 503)
    request_id = _parameter("request_id", "path", {"type": "string", "minLength": 1}, "request or task id")
    life = _get("get_request", "RequestLife", "The stages of one request.", 404, 503)
    life["responses"]["200"]["links"] = _links_to_result("$response.body#/task_id")
    return {
        "/v1/result/{task_id}": {
            "get": {**result, "parameters": [task_id, wait, forget]},
            "delete": {**cancel, "parameters": [task_id]},
        },
        "/internal/requests/{request_id}": {"get": {**life, "parameters": [request_id]}},
    }


def _other_paths() -> dict[str, Any]:
    model = _parameter("model", "query", {"type": "string"}, "check this model; without it, any model")
    ready = _get("get_readiness", "Readiness", "Redis answers, and a model is served.", 404, 503)
    health = _get("get_health", "Health", "Health of the service.")
    health["responses"]["503"] = _answer("Health", "No model is served.")
    text = {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    metrics = {
        "operationId": "get_metrics",
        "summary": "Metrics, summed over all processes.",
        "responses": {"200": text, **_errors(503)},
    }
    return {
        "/": {"get": _get("get_about", "About", "About this service, with links.")},
        "/v1/models": {"get": _get("list_models", "Models", "The served models, and the input of each.")},
        "/internal/health": {"get": health},
        "/internal/scale": {
            "get": _get("get_scale", "Scale", "The number of workers that the autoscaler wants.", 404, 503)
        },
        "/healthz": {"get": _get("get_liveness", "Liveness", "The process is alive.")},
        "/readyz": {"get": {**ready, "parameters": [model]}},
        "/metrics": {"get": metrics},
        "/openapi.json": {"get": _get("get_description", "Description", "This document.")},
    }


def _common_headers() -> list[dict[str, Any]]:
    """The header parameters of every inference endpoint."""
    # Blanks at either end are not part of a field's value.
    key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
    return [
        _parameter("X-Timeout-Ms", "header", {"type": "number", "exclusiveMinimum": 0}, "the caller's deadline"),
        _parameter("X-Request-Id", "header", {"type": "string"}, "the caller's own id"),
        _parameter(
            "Cache-Control",
            "header",
            {"type": "string"},
            "no-cache: compute the answer, do not reuse an earlier one",
        ),
        _parameter(
            "Idempotency-Key",
            "header",
            key,
            "a repeat of the same request gets the first one's outcome; a different request with this key gets 409",
        ),
    ]


def _post(name: str, body: str, answer: str, summary: str, *errors: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    return {**_get(name, answer, summary, *errors), "requestBody": {"required": True, "content": content}}


def _get(name: str, answer: str, summary: str, *errors: int) -> dict[str, Any]:
    """A GET operation; `name` is its name in generated clients."""
    responses = {"200": _answer(answer, summary), **_errors(*errors)}
    return {"operationId": name, "summary": summary, "responses": responses}


def _answer(schema: str, description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _errors(*statuses: int) -> dict[str, Any]:
    by_status = {status: sorted(code for code, each in STATUS_OF.items() if each == status) for status in statuses}
    return {str(status): _answer("Error", " or ".join(codes)) for status, codes in by_status.items()}


def _links_to_result(task_id: str) -> dict[str, Any]:
    return {
        "result": _link("get_result", "task_id", task_id, "The state, and the outcome once there is one."),
        "cancel": _link("cancel_result", "task_id", task_id, "Cancel it, if it has not started."),
    }


def _link(operation: str, parameter: str, value: str, description: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {parameter: value}, "description": description}


def _parameter(name: str, where: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}
