"""`GET /openapi.json`: the API described, from the same types that validate it."""

from __future__ import annotations

from typing import Any

import msgspec

from config.settings import Settings
from webapp.api.declared import declare_in
from webapp.call import Answer, Call
from webapp.errors import STATUS_OF
from webapp.identity.base import Access, access_of
from webapp.request import BulkBody, InferenceBody, PredictBody, SimpleBody
from webapp.services import Services

_BODIES = (InferenceBody, BulkBody, PredictBody, SimpleBody)


def document(services: Services, call: Call) -> Answer:
    services.description = services.description or msgspec.json.encode(describe(services.settings))
    return Answer(200, services.description, call.request_id)


def describe(settings: Settings) -> dict[str, Any]:
    """The document, OpenAPI 3.1, with what each model declares, and who may ask where callers have to say that."""
    _, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    components["Error"] = {
        "type": "object",
        "required": ["error", "message", "request_id"],
        "properties": {
            "error": {"type": "string", "enum": sorted(STATUS_OF)},
            "message": {"type": "string"},
            "request_id": {"type": "string"},
            "retry_after_ms": {"type": "integer", "minimum": 0},
        },
    }
    components["Metadata"] = _object(
        latency_ms="number",
        admission_ms="number",
        queue_ms="number",
        batch_wait_ms="number",
        transfer_ms="number",
        compute_ms="number",
        reply_ms="number",
        reason="string",
        batch_size="integer",
        batch_id="string",
        tier="string",
        attempt="integer",
        cached="boolean",
        model_version="string",
    )
    components["Metadata"]["properties"]["collapsed"] = {"type": "boolean"}
    components["Inference"] = _object(request_id="string", task_id="string", model="string", latency_ms="number")
    components["Inference"]["properties"] |= {"output": {}, "metadata": {"$ref": "#/components/schemas/Metadata"}}
    components["Accepted"] = _object(task_id="string", request_id="string", status="string")
    components["Result"] = {
        "type": "object",
        "required": ["task_id", "status"],
        "properties": {
            "task_id": {"type": "string"},
            "status": {"enum": ["PENDING", "STARTED", "SUCCESS", "FAILURE", "CANCELLED"]},
            "output": {},
            "error": {"type": "string"},
            "message": {"type": "string"},
        },
    }
    components["Bulk"] = _object(request_id="string", model="string", latency_ms="number")
    components["Bulk"]["properties"]["results"] = {"type": "array", "items": {"type": "object"}}
    components["Plain"] = _object(request_id="string", latency_ms="number")
    components["Plain"]["properties"]["output"] = {}
    components["Anything"] = {"type": "object"}
    components["Models"] = _object(object="string", data="array")
    declare_in(components, settings)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Bunch", "version": "1", "description": "Dynamic batching for GPU models."},
        "paths": _paths(),
        "components": {"schemas": components},
    }
    return document if settings.auth == "off" else _secured(document)


def _secured(document: dict[str, Any]) -> dict[str, Any]:
    """With what each path asks of its callers, and how it refuses."""
    for path, item in document["paths"].items():
        access = access_of(path)
        if access is Access.PUBLIC:
            continue
        statuses = (401, 403, 429) if access is Access.OPERATOR else (401, 429)
        for operation in item.values():
            operation["security"] = [{"bearer": []}]
            operation["responses"] |= _errors(*statuses)
    scheme = {"type": "http", "scheme": "bearer", "description": "An API key, a JSON Web Token or the service token."}
    document["components"]["securitySchemes"] = {"bearer": scheme}
    return document


def _object(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(properties),
        "properties": {name: {"type": kind} for name, kind in properties.items()},
    }


def _paths() -> dict[str, Any]:
    infer = _post(
        "InferenceBody", "Inference", "One input, its own output.", 400, 404, 409, 413, 415, 422, 429, 500, 503, 504
    )
    infer["parameters"] = [
        _parameter("Prefer", "header", {"type": "string"}, "respond-async: answer 202 once it is queued"),
        _parameter("X-Timeout-Ms", "header", {"type": "number", "minimum": 0}, "the caller's deadline"),
        _parameter("X-Request-Id", "header", {"type": "string"}, "the caller's own id"),
        _parameter(
            "Cache-Control",
            "header",
            {"type": "string"},
            "no-cache: not an answer that was computed for an earlier request",
        ),
        _parameter(
            "Idempotency-Key",
            "header",
            {"type": "string", "minLength": 1, "maxLength": 255},
            "the same key and request again: the first one's outcome; the same key and another request: 409",
        ),
    ]
    infer["responses"]["202"] = _answer("Accepted", "Queued; poll the Location.")
    task_id = _parameter("task_id", "path", {"type": "string", "minLength": 1}, "as answered with 202")
    wait = _parameter("wait_ms", "query", {"type": "number", "minimum": 0}, "long-poll for up to so long")
    return {
        "/v1/inference": {"post": infer},
        "/v1/inference/bulk": {
            "post": _post("BulkBody", "Bulk", "Many inputs, answers in order.", 400, 404, 409, 413, 415, 429, 503)
        },
        "/v1/predict": {
            "post": _post(
                "PredictBody", "Plain", "Like /v1/inference.", 400, 404, 409, 413, 415, 422, 429, 500, 503, 504
            )
        },
        "/api/inference": {
            "post": _post(
                "SimpleBody", "Plain", "A string for the default model.", 400, 409, 413, 415, 422, 429, 500, 503, 504
            )
        },
        "/v1/models": {"get": _get("Models", "What is served, and what each model takes.")},
        "/v1/result/{task_id}": {
            "get": {"parameters": [task_id, wait], **_get("Result", "State and outcome.", 400, 404, 503)},
            "delete": {"parameters": [task_id], **_get("Result", "Take back what has not started.", 404, 409, 503)},
        },
        "/internal/requests/{request_id}": {
            "get": {
                "parameters": [
                    _parameter("request_id", "path", {"type": "string", "minLength": 1}, "request or task id")
                ],
                **_get("Anything", "One request's life.", 404, 503),
            }
        },
        "/internal/health": {"get": _get("Anything", "How the service is.", 503)},
        "/internal/scale": {"get": _get("Anything", "How many workers the autoscaler wants.", 404, 503)},
        "/healthz": {"get": _get("Anything", "The process answers.")},
        "/readyz": {"get": _get("Anything", "Every model is served.", 503)},
        "/metrics": {
            "get": {
                "responses": {"200": {"description": "Prometheus text", "content": {"text/plain": {}}}, **_errors(503)}
            }
        },
        "/openapi.json": {"get": _get("Anything", "This document.")},
    }


def _post(body: str, answer: str, summary: str, *errors: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    return {"requestBody": {"required": True, "content": content}, **_get(answer, summary, *errors)}


def _get(answer: str, summary: str, *errors: int) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _answer(answer, summary), **_errors(*errors)}}


def _answer(schema: str, description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _errors(*statuses: int) -> dict[str, Any]:
    by_status = {status: sorted(code for code, each in STATUS_OF.items() if each == status) for status in statuses}
    return {str(status): _answer("Error", " or ".join(codes)) for status, codes in by_status.items()}


def _parameter(name: str, where: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}
