"""`GET /v1/models`: the served models, in the form of OpenAI's API, with the schemas of each."""

from __future__ import annotations

import msgspec

from config.schema import ModelSettings
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services


def list_models(services: Services, call: HttpRequest) -> HttpResponse:
    """List the default model first: clients that take any model take the first."""
    settings = services.settings
    first = settings.default_model
    models = sorted(settings.models.values(), key=lambda model: model.name != first)
    document = {"object": "list", "data": [_described(model) for model in models]}
    return HttpResponse(200, msgspec.json.encode(document), call.request_id)


def _described(model: ModelSettings) -> dict[str, object]:
    """OpenAI's four fields, each of which some client requires, then our own."""
    row: dict[str, object] = {
        "id": model.name,
        "object": "model",
        # A time is required, but the age of a model is not known.
        "created": 0,
        "owned_by": "bunch",
        "max_batch_size": model.max_batch_size,
    }
    if model.input_schema is not None:
        row["input_schema"] = model.input_schema
    if model.parameters_schema is not None:
        row["parameters_schema"] = model.parameters_schema
    return row
