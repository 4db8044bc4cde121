"""`GET /`: a short description of the service, for whoever has found the port: JSON, or a page for browsers."""

from __future__ import annotations

import msgspec
from msgspec import structs

from webapp.api.reference import asset
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services
from webapp.static_files import strict_headers

_VARY = ("Vary", "Accept")
_PAGE_HEADERS = strict_headers()
_ABOUT = msgspec.json.encode(
    {
        "name": "Bunch",
        "description": "Inference over HTTP: one input in, its output out; requests that wait together run as a batch.",
        "links": {
            "api": "/openapi.json",
            "docs": "/docs",
            "models": "/v1/models",
            "inference": "/v1/inference",
            "embeddings": "/v1/embeddings",
            "rerank": "/v1/rerank",
            "alive": "/healthz",
            "ready": "/readyz",
            "operations": "/ops",
        },
    }
)


def root(services: Services, call: HttpRequest) -> HttpResponse:
    """The answer to `GET /`, also for strangers: it contains nothing about this installation."""
    if "text/html" in (call.header("HTTP_ACCEPT") or ""):
        return structs.replace(asset(services, call, "root.html"), headers=(*_PAGE_HEADERS, _VARY))
    return HttpResponse(200, _ABOUT, call.request_id, headers=(_VARY,))
