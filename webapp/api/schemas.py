"""The schemas of bodies and answers, for components/schemas of `webapp.api.openapi`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from config.settings import Settings
from webapp.api.doors.envelopes import kserve_error, openai_error, rerank_error, tei_error
from webapp.api.model_schemas import VALUES, declare_in
from webapp.errors import STATUS_OF, Envelope
from webapp.model_tasks import TASKS

_ANY: dict[str, Any] = {"description": "any JSON value"}
_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
_TEXT: dict[str, Any] = {"type": "string"}
_TOKENS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_NOT_EMPTY = {**_TEXT, "minLength": 1}
_TEXTS: dict[str, Any] = {
    "anyOf": [
        _NOT_EMPTY,
        {"type": "array", "minItems": 1, "items": _NOT_EMPTY},
        _TOKENS | {"description": "the tokens of one text, where the model accepts them"},
        {"type": "array", "minItems": 1, "items": _TOKENS},
    ]
}
_SEQUENCE: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": 2, "items": _TEXT}
_SEQUENCES: dict[str, Any] = {"anyOf": [_TEXT, _SEQUENCE, {"type": "array", "minItems": 1, "items": _SEQUENCE}]}
# What the types of these fields cannot say: that a list holds one kind of items.
_INPUTS = {
    "EmbeddingsBody": ("input", _TEXTS),
    "EmbedBody": ("inputs", _TEXTS),
    "TeiPredictBody": ("inputs", _SEQUENCES),
}
ERROR_OF: dict[Envelope, str] = {
    openai_error: "OpenAIError",
    rerank_error: "RerankError",
    tei_error: "TeiError",
    kserve_error: "KServeError",
}
"""The component of each door's errors."""

_ADDED: dict[str, Any] = {
    "type": "object",
    "additionalProperties": True,
    "description": "what the model adds to its output; left out where that is nothing",
}


def components(settings: Settings, bodies: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """Name → schema. Those of bodies come from the types that validate them, extended by the models' schemas."""
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schemas |= {
        "Error": _error(),
        "Metadata": _metadata(),
        "Inference": _object(
            request_id="string",
            task_id="string",
            model="string",
            latency_ms="number",
            output=_ANY,
            metadata=_ref("Metadata"),
        ),
        "Accepted": _object(task_id="string", request_id="string", status="string"),
        "Result": _result(),
        "Cancelled": _object(task_id="string", status={"type": "string", "enum": ["CANCELLED"]}),
        "Bulk": _object(request_id="string", model="string", latency_ms="number", results=_list_of(_ref("BulkItem"))),
        "BulkItem": _bulk_item(),
        "Plain": _object(request_id="string", latency_ms="number", output=_ANY),
        "Models": _object(object="string", data=_list_of(_ref("Model"))),
        "Model": _model(),
        "RequestLife": _life(),
        "Health": _health(),
        "Readiness": _object(
            status="string", models=_list_of({"type": "string"}), unavailable_models=_list_of({"type": "string"})
        ),
        "Liveness": _object(status="string", process="string", waiting="integer"),
        "Scale": {"type": "object", "additionalProperties": True},
        "About": _object(
            name="string", description="string", links={"type": "object", "additionalProperties": {"type": "string"}}
        ),
        "Description": {"type": "object", "additionalProperties": True},
        **_doors(),
    }
    for body, (field, schema) in _INPUTS.items():
        if body in schemas:
            schemas[body]["properties"][field] = schema
    declare_in(schemas, settings)
    return {name: _with_items(schema) for name, schema in schemas.items()}


def _doors() -> dict[str, Any]:
    """The answers and errors of `webapp.api.doors`."""
    text: dict[str, Any] = {"type": ["string", "null"]}
    usage = _object(prompt_tokens="integer", total_tokens="integer")
    embedding = _object(
        object="string",
        index="integer",
        embedding={"oneOf": [_NUMBERS, {"type": "string", "description": "base64 of little-endian float32"}]},
    )
    ranked = _object(index="integer", relevance_score="number")
    rank = _object(index="integer", score="number")
    prediction = _object(label="string", score="number")
    return {
        "OpenAIError": _object(error=_object(message="string", type="string", param=text, code=text)),
        "RerankError": _object(message="string", detail="string", code="string", id="string"),
        "KServeError": _object(error="string"),
        "TeiError": _object(error="string", error_type="string"),
        "Usage": usage,
        "Embedding": _optional(embedding, truncated="boolean"),
        "Embeddings": _object(object="string", data=_list_of(_ref("Embedding")), model="string", usage=_ref("Usage")),
        "RankedDocument": _optional(ranked, document=_object(text="string")),
        "Ranking": _object(
            id="string",
            model="string",
            results=_list_of(_ref("RankedDocument")),
            meta={"type": "object", "additionalProperties": True},
            usage=_ref("Usage"),
        ),
        "Vectors": _list_of(_NUMBERS),
        "Rank": _optional(rank, text="string"),
        "Ranks": _list_of(_ref("Rank")),
        "Prediction": prediction,
        "Predictions": {"oneOf": [_list_of(_ref("Prediction")), _list_of(_list_of(_ref("Prediction")))]},
    }


def _error() -> dict[str, Any]:
    schema = _object(error={"type": "string", "enum": sorted(STATUS_OF)}, message="string", request_id="string")
    return _optional(schema, retry_after_ms={"type": "integer", "minimum": 0})


def _metadata() -> dict[str, Any]:
    schema = _object(
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
    return _optional(schema, collapsed="boolean")


def _result() -> dict[str, Any]:
    states = ["PENDING", "STARTED", "SUCCESS", "FAILURE", "CANCELLED"]
    schema = _object(task_id="string", status={"type": "string", "enum": states})
    moment = {"type": "string", "format": "date-time"}
    return _optional(schema, completed_at=moment, output=_ANY, metadata=_ADDED, error="string", message="string")


def _bulk_item() -> dict[str, Any]:
    """An output, or an error in its place."""
    parts: dict[str, Any] = {
        "task_id": "string",
        "output": _ANY,
        "metadata": _ADDED,
        "error": "string",
        "message": "string",
    }
    return _optional({"type": "object"}, **parts)


def _model() -> dict[str, Any]:
    schema = _object(
        id="string",
        object="string",
        created="integer",
        owned_by="string",
        max_batch_size="integer",
        tasks=_list_of({"type": "string", "enum": list(TASKS)}),
    )
    declared = {"type": "object", "additionalProperties": True}
    kind = {"type": "string", "enum": ["bytes", "npy", "arrow"]}
    return _optional(schema, description="string", input_type=kind, input_schema=declared, parameters_schema=declared)


def _life() -> dict[str, Any]:
    schema = _object(
        request_id="string",
        task_id="string",
        status={"type": "string", "enum": ["queued", "processing", "completed", "failed"]},
        attempt="integer",
    )
    error = _object(error="string", message="string")
    number, text = {"type": ["number", "null"]}, {"type": ["string", "null"]}
    return _optional(
        schema,
        latency_ms=number,
        queue_ms=number,
        compute_ms=number,
        batch_id=text,
        batch_size={"type": ["integer", "null"]},
        tier=text,
        completed_at={"type": ["string", "null"], "format": "date-time"},
        error={"oneOf": [{"type": "null"}, error]},
    )


def _health() -> dict[str, Any]:
    return _object(
        status={"type": "string", "enum": ["healthy", "degraded", "unhealthy"]},
        executor_utilization="number",
        gpu_utilization={"type": ["number", "null"]},
        queue_depth="integer",
        requests_per_second="number",
        workers="integer",
        healthy_workers="integer",
        redis="string",
        unavailable_models=_list_of({"type": "string"}),
        breakers={"type": "object", "additionalProperties": {"type": "string"}},
    )


def _object(**properties: str | dict[str, Any]) -> dict[str, Any]:
    """An object whose properties are all required; a string is the name of a type."""
    return _optional({"type": "object", "required": list(properties)}, **properties)


def _optional(schema: dict[str, Any], **properties: str | dict[str, Any]) -> dict[str, Any]:
    """`schema` with further, optional properties."""
    more = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()}
    return {**schema, "properties": {**schema.get("properties", {}), **more}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _with_items(schema: Any) -> Any:
    """The schema with `items` in every array: without them client generators leave out the whole operation."""
    if isinstance(schema, list):
        return [_with_items(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {key: each if key in VALUES else _with_items(each) for key, each in schema.items()}
    if whole.get("type") in ("array", ["array", "null"]) and "prefixItems" not in whole:
        whole.setdefault("items", {})
    return whole
