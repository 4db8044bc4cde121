"""`GET /v1/models`: what is served, as OpenAI's clients list it, and what each model takes."""

from __future__ import annotations

import msgspec

from config.schema import ModelSettings
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services


def list_models(services: Services, call: HttpRequest) -> HttpResponse:
    """The default model first: clients that take any take the first."""
    settings = services.settings
    first = settings.default_model
    models = sorted(settings.models.values(), key=lambda model: model.name != first)
    document = {"object": "list", "data": [_described(model) for model in models]}
    return HttpResponse(200, msgspec.json.encode(document), call.request_id)


def _described(model: ModelSettings) -> dict[str, object]:
    """OpenAI's four fields, of which clients insist on each, then our own."""
    row: dict[str, object] = {
        "id": model.name,
        "object": "model",
        # A time is wanted; when a model came to be is nothing that we know.
        "created": 0,
        "owned_by": "bunch",
        "max_batch_size": model.max_batch_size,
    }
    if model.input_schema is not None:
        row["input_schema"] = model.input_schema
    if model.parameters_schema is not None:
        row["parameters_schema"] = model.parameters_schema
    return row
