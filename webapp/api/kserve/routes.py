"""The endpoints of the Open Inference Protocol, for `webapp.routes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webapp.api.doors.envelopes import kserve_error
from webapp.api.kserve import inference, models, statistics
from webapp.api.kserve.tensors import BINARY, HEADER_LENGTH, InferHead
from webapp.api.openapi import parameter
from webapp.identity.base import Access
from webapp.routing import Handler, Route

_FAILURES = (400, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504)
_OBJECT = {"type": "object", "additionalProperties": True}
_TAG = "KServe v2"
_MODEL = parameter("model", "path", {"type": "string", "minLength": 1}, "name of the model")
_VERSION = parameter("version", "path", {"type": "string", "minLength": 1}, "version of the model")
_LENGTH = {"type": "integer", "minimum": 0}
_RAW_INPUTS = {
    "type": "string",
    "format": "binary",
    "description": (
        f"The JSON document, {HEADER_LENGTH} bytes of it, and behind it the raw data of each input whose parameters "
        "have `binary_data_size`, in the order of the inputs: numbers little-endian, each element of BYTES with its "
        "length in 4 bytes before it. Such an input has no `data`."
    ),
}
_RAW_OUTPUTS = {
    "type": "string",
    "format": "binary",
    "description": (
        "The same form, where `parameters.binary_data_output` of the request, or `parameters.binary_data` of an "
        f"output, is true. Without the header {HEADER_LENGTH} all of the answer is JSON."
    ),
}
_INFER_HEADERS = (
    parameter(HEADER_LENGTH, "header", _LENGTH, "where the JSON ends and raw tensors begin, in bytes"),
    parameter("X-Timeout-Ms", "header", {"type": "number", "exclusiveMinimum": 0}, "the caller's deadline"),
)


def _of_a_model(
    method: str, part: str, handler: Handler, name: str, summary: str, errors: tuple[int, ...], **more: Any
) -> Iterator[Route]:
    """The route of a model, and that of one of its versions."""
    parameters = more.pop("parameters", ())
    for version, suffix in (("", ""), ("/versions/<version>", "_of_version")):
        yield Route(
            *(method, f"/v2/models/<model>{version}{part}", Access.TENANT, handler),
            name=name + suffix,
            summary=summary,
            answer=_OBJECT,
            errors=errors,
            parameters=(_MODEL, *((_VERSION,) if version else ()), *parameters),
            fast=not version,
            envelope=kserve_error,
            tag=_TAG,
            **more,
        )


def _of_the_server(
    method: str, path: str, access: Access, handler: Handler, name: str, summary: str, errors: tuple[int, ...] = ()
) -> Route:
    is_of_a_model = "<model>" in path
    return Route(
        *(method, path, access, handler),
        name=name,
        summary=summary,
        answer={"type": "array", "items": _OBJECT} if path.endswith("/index") else _OBJECT,
        errors=errors,
        parameters=(_MODEL,) if is_of_a_model else (),
        fast=True,
        envelope=kserve_error,
        tag=_TAG,
    )


ROUTES = (
    _of_the_server("GET", "/v2", Access.PUBLIC, models.server, "kserve_server", "The server and its extensions."),
    _of_the_server("GET", "/v2/health/live", Access.PUBLIC, models.live, "kserve_live", "The process is alive."),
    _of_the_server(
        *("GET", "/v2/health/ready", Access.PUBLIC, models.ready, "kserve_ready", "A model is served.", (503,))
    ),
    _of_the_server("GET", "/v2/models", Access.TENANT, models.list_models, "kserve_models", "The names of the models."),
    _of_the_server(
        *("GET", "/v2/models/stats", Access.TENANT, statistics.statistics),
        *("kserve_statistics", "The statistics of all models.", (503,)),
    ),
    *_of_a_model(
        *("GET", "", models.metadata, "kserve_model", "The inputs and outputs of a model.", (404,)),
    ),
    *_of_a_model(
        *("GET", "/ready", models.model_ready, "kserve_model_ready", "An executor takes batches of it.", (404, 503))
    ),
    *_of_a_model("GET", "/config", models.config, "kserve_config", "The configuration, in Triton's form.", (404,)),
    *_of_a_model("GET", "/stats", statistics.statistics, "kserve_model_statistics", "Its statistics.", (404, 503)),
    *_of_a_model(
        *("POST", "/infer", inference.infer, "kserve_infer", "Tensors in, tensors out.", _FAILURES),
        body=InferHead,
        parameters=_INFER_HEADERS,
        takes={BINARY: _RAW_INPUTS},
        also={BINARY: _RAW_OUTPUTS},
        headers={HEADER_LENGTH: {"description": "Where the JSON ends, of an answer with raw data.", "schema": _LENGTH}},
    ),
    _of_the_server(
        *("POST", "/v2/repository/index", Access.TENANT, models.index, "kserve_index", "The models and their states."),
        (400,),
    ),
    _of_the_server(
        *("POST", "/v2/repository/models/<model>/load", Access.OPERATOR, models.load, "kserve_load"),
        *("Success where the model is loaded.", (404, 503)),
    ),
    _of_the_server(
        *("POST", "/v2/repository/models/<model>/unload", Access.OPERATOR, models.unload, "kserve_unload"),
        *("Refused, with what to do instead.", (400, 404)),
    ),
)
