"""`GET /openapi.json`: the API described, so that clients can be generated from it. What bodies look like:
`webapp.api.schemas`.
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
    """The document, OpenAPI 3.1, with what each model declares, and who may ask where callers have to say that."""
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Bunch", "version": "1", "description": "Dynamic batching for GPU models."},
        "paths": {**_inference_paths(), **_result_paths(), **_other_paths()},
        "components": {"schemas": components(settings)},
    }
    return _on_loopback(description) if settings.auth == "off" else _secured(description)


def _on_loopback(description: dict[str, Any]) -> dict[str, Any]:
    """Everybody who is on this machine may ask; whoever is not is told so."""
    for path, item in description["paths"].items():
        if access_of(path) is not Access.PUBLIC:
            for operation in item.values():
                operation["responses"] |= _errors(403)
    return description


def _secured(description: dict[str, Any]) -> dict[str, Any]:
    """With what each path asks of its callers, and how it refuses."""
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
        **_answer("Accepted", "Queued; poll the Location."),
        "headers": {"Location": {"description": "where its result will be", "schema": {"type": "string"}}},
        "links": _links_to_result("$response.body#/task_id"),
    }
    infer["responses"]["200"]["links"] = {
        "life": _link("get_request", "request_id", "$response.body#/request_id", "What became of it, step by step.")
    }
    bulk = _post("infer_bulk", "BulkBody", "Bulk", "Many inputs, answers in order.", 400, 404, 409, 413, 415, 429, 503)
    bulk["parameters"] = _common_headers()
    predict = _post("predict", "PredictBody", "Plain", "Like /v1/inference, with other names.", *_FAILURES)
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
    task_id = _parameter("task_id", "path", {"type": "string", "minLength": 1}, "as answered with 202")
    wait = _parameter("wait_ms", "query", {"type": "number", "minimum": 0}, "long-poll for up to so long")
    forget = _parameter("forget", "query", {"type": "boolean"}, "drop the outcome once it has been told")
    result = _get("get_result", "Result", "State and outcome.", 400, 404, 503)
    cancel = _get("cancel_result", "Cancelled", "Take back what has not started.", 404, 409, 503)
    request_id = _parameter("request_id", "path", {"type": "string", "minLength": 1}, "request or task id")
    life = _get("get_request", "RequestLife", "One request's life.", 404, 503)
    life["responses"]["200"]["links"] = _links_to_result("$response.body#/task_id")
    return {
        "/v1/result/{task_id}": {
            "get": {**result, "parameters": [task_id, wait, forget]},
            "delete": {**cancel, "parameters": [task_id]},
        },
        "/internal/requests/{request_id}": {"get": {**life, "parameters": [request_id]}},
    }


def _other_paths() -> dict[str, Any]:
    model = _parameter("model", "query", {"type": "string"}, "whether this one is served; without it, whether any is")
    ready = _get("get_readiness", "Readiness", "Redis answers, and a model is served.", 404, 503)
    health = _get("get_health", "Health", "How the service is.")
    health["responses"]["503"] = _answer("Health", "Nothing is served.")
    text = {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    metrics = {
        "operationId": "get_metrics",
        "summary": "Metrics, summed over all processes.",
        "responses": {"200": text, **_errors(503)},
    }
    return {
        "/": {"get": _get("get_about", "About", "What this is, with links.")},
        "/v1/models": {"get": _get("list_models", "Models", "What is served, and what each model takes.")},
        "/internal/health": {"get": health},
        "/internal/scale": {"get": _get("get_scale", "Scale", "How many workers the autoscaler wants.", 404, 503)},
        "/healthz": {"get": _get("get_liveness", "Liveness", "The process answers.")},
        "/readyz": {"get": {**ready, "parameters": [model]}},
        "/metrics": {"get": metrics},
        "/openapi.json": {"get": _get("get_description", "Description", "This document.")},
    }


def _common_headers() -> list[dict[str, Any]]:
    """Of every inference."""
    # Blanks at either end are no part of a field's value.
    key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
    return [
        _parameter("X-Timeout-Ms", "header", {"type": "number", "exclusiveMinimum": 0}, "the caller's deadline"),
        _parameter("X-Request-Id", "header", {"type": "string"}, "the caller's own id"),
        _parameter(
            "Cache-Control",
            "header",
            {"type": "string"},
            "no-cache: no answer that was computed for an earlier request",
        ),
        _parameter(
            "Idempotency-Key",
            "header",
            key,
            "the same key and request again: the first one's outcome; the same key and another request: 409",
        ),
    ]


def _post(name: str, body: str, answer: str, summary: str, *errors: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    return {**_get(name, answer, summary, *errors), "requestBody": {"required": True, "content": content}}


def _get(name: str, answer: str, summary: str, *errors: int) -> dict[str, Any]:
    """`name` is what generated clients call it."""
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
        "result": _link("get_result", "task_id", task_id, "Its state, and its outcome once it has one."),
        "cancel": _link("cancel_result", "task_id", task_id, "Take it back, if it has not started."),
    }


def _link(operation: str, parameter: str, value: str, description: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {parameter: value}, "description": description}


def _parameter(name: str, where: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}
