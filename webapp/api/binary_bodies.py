"""The description of bodies and answers that are bytes, and of the query beside them, for `webapp.api.openapi`."""

from __future__ import annotations

from typing import Any

from config.settings import Settings
from tasks.protocol.caller import CLIENT_ID, MAX_CLIENT_ID
from webapp.binary_answers import METADATA
from webapp.media_types import ARROW, BYTES, MULTIPART, NPY

_BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
_INPUT: dict[str, Any] = {**_BINARY, "description": "the input itself"}
_BODIES: dict[str, dict[str, dict[str, Any]]] = {
    "bytes": {BYTES: _INPUT, "image/*": _INPUT, "audio/*": _INPUT, "video/*": _INPUT},
    "npy": {BYTES: _INPUT, NPY: {**_BINARY, "description": "an array, as numpy.save writes it"}},
    "arrow": {BYTES: _INPUT, ARROW: {**_BINARY, "description": "a table, as a stream of Arrow's IPC format"}},
}


_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "input": {**_BINARY, "description": "the input, whose media type is that of the part"},
        "request": {
            "type": "object",
            "description": "model, parameters, timeout_ms, client_id, callback_url; or a part for each",
        },
    },
    "additionalProperties": False,
}


def binary_bodies(settings: Settings) -> dict[str, dict[str, Any]]:
    """Media type → schema of each body that is an input, for the models that there are."""
    types = sorted({model.input_type for model in settings.models.values() if model.takes_bytes})
    found = {kind: schema for each in types for kind, schema in _BODIES[each].items()}
    return {**found, MULTIPART: _FORM} if found else {}


def _in_query(name: str, **described: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, **described, "description": "where the body is the input"}


IN_QUERY = (
    _in_query("model", schema={"type": "string"}),
    _in_query("parameters", content={"application/json": {"schema": {"type": "object"}}}),
    _in_query("timeout_ms", schema={"type": "number", "exclusiveMinimum": 0}),
    _in_query("client_id", schema={"type": "string", "maxLength": MAX_CLIENT_ID, "pattern": CLIENT_ID}),
)
"""The members of a JSON body that stand in the query of any other."""

_OUTPUT: dict[str, Any] = {**_BINARY, "description": "an output that is bytes, by `Accept`"}
BINARY_OUTPUTS: dict[str, dict[str, Any]] = {BYTES: _OUTPUT, "image/*": _OUTPUT}
"""Media type → schema of an answer that is an output of bytes."""
OUTPUTS: dict[str, dict[str, Any]] = {
    **BINARY_OUTPUTS,
    NPY: {**_BINARY, "description": "an output that is an array, by `Accept`"},
    ARROW: {**_BINARY, "description": "an output that is a table, by `Accept`"},
}
"""Media type → schema of an answer that is an output in any form but JSON."""
METADATA_HEADER: dict[str, dict[str, Any]] = {
    METADATA: {
        "description": "everything but the output, as JSON, where the output is the body",
        "schema": {"type": "string"},
    }
}
