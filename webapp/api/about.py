"""`GET /`: a short description of the service, for whoever has found the port."""

from __future__ import annotations

import msgspec

from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_ABOUT = msgspec.json.encode(
    {
        "name": "Bunch",
        "description": "Inference over HTTP: one input in, its output out; requests that wait together run as a batch.",
        "links": {
            "api": "/openapi.json",
            "models": "/v1/models",
            "inference": "/v1/inference",
            "alive": "/healthz",
            "ready": "/readyz",
            "operations": "/ops",
        },
    }
)


def root(services: Services, call: HttpRequest) -> HttpResponse:
    """The answer to `GET /`, also for strangers: it contains nothing about this installation."""
    return HttpResponse(200, _ABOUT, call.request_id)
