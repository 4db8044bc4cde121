"""OpenAI's API for embeddings and models.

    POST /v1/embeddings    input: a text, texts, a token array, token arrays ─▶ a request each ─▶ {"object": "list", …}
    GET /v1/models         the models, the default one first
    GET /v1/models/{id}    one of them

`encoding_format` is `float` as long as nobody names one; OpenAI's own clients ask for `base64`. `parameters` and
`timeout_ms` are ours (`extra_body` of those clients): the same as at /v1/inference.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Literal

import msgspec

from config.schema import ModelSettings
from tasks.protocol.caller import valid_client_id
from webapp.api.doors import OPENAI
from webapp.api.doors.inputs import Dimensions, Text, require_few, texts, with_dimensions
from webapp.api.doors.outputs import packed_vector, tokens_of, told_of, vector
from webapp.api.running import Asked, model_for, run_all
from webapp.model_tasks import Served
from webapp.parsing import Milliseconds, read_body
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services


class EmbeddingsBody(msgspec.Struct):
    """The body of `POST /v1/embeddings`."""

    input: Text
    model: str | None = None
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None


_embeddings = msgspec.json.Decoder(EmbeddingsBody)


def embeddings(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v1/embeddings`."""
    started = perf_counter()
    body = read_body(call, _embeddings, services.large)
    if body.user:
        call.client_id = valid_client_id(body.user)
    model = model_for(services, call, body.model, "embed")
    inputs = texts(body.input, "input", model)
    require_few(len(inputs), services.settings, "input")
    parameters = with_dimensions(body.parameters, body.dimensions, model)
    packed = body.encoding_format == "base64"
    asked = Asked(OPENAI, model.name, inputs, "input", started, parameters, body.timeout_ms, packed)
    replies = run_all(services, call, asked)
    form = packed_vector if packed else vector
    told = [told_of(each) for each in replies]
    rows = [
        b'{"object":"embedding","index":%d,"embedding":%b%b}'
        % (at, form(reply, model.name), b',"truncated":true' if told[at].truncated is True else b"")
        for at, reply in enumerate(replies)
    ]
    tokens = tokens_of(told)
    answer = b'{"object":"list","data":[%b],"model":"%b","usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        b",".join(rows),
        services.versions.full.get(model.name, model.name).encode(),
        tokens,
        tokens,
    )
    return HttpResponse(200, answer, call.request_id)


def list_models(services: Services, call: HttpRequest) -> HttpResponse:
    """List the default model first: clients that take any model take the first."""
    rows = [_described(services.settings.models[each.name], each) for each in services.tasks]
    return HttpResponse(200, msgspec.json.encode({"object": "list", "data": rows}), call.request_id)


def get_model(services: Services, call: HttpRequest, model_id: str) -> HttpResponse:
    """One model. Raises ApiError UNKNOWN_MODEL."""
    name = services.versions.exact(model_id)
    row = {**_described(services.settings.models[name], services.tasks[name]), "id": model_id}
    return HttpResponse(200, msgspec.json.encode(row), call.request_id)


def _described(model: ModelSettings, served: Served) -> dict[str, object]:
    """OpenAI's four fields, each of which some client requires, then our own."""
    row: dict[str, object] = {
        "id": model.name,
        "object": "model",
        # A time is required, but the age of a model is not known.
        "created": 0,
        "owned_by": "bunch",
        "max_batch_size": model.max_batch_size,
        "tasks": served.tasks,
    }
    if model.takes_bytes:
        row["input_type"] = model.input_type
    if served.description:
        row["description"] = served.description
    if model.input_schema is not None:
        row["input_schema"] = model.input_schema
    if model.parameters_schema is not None:
        row["parameters_schema"] = model.parameters_schema
    return row
