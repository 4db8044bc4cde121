"""`GET /`: what this is, for whoever has found the port."""

from __future__ import annotations

import msgspec

from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_ABOUT = msgspec.json.encode(
    {
        "name": "Bunch",
        "description": "Inference over HTTP: one input in, its output out; what waits at the same moment is one batch.",
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
    """For strangers too: nothing of this installation is in it."""
    return HttpResponse(200, _ABOUT, call.request_id)
