"""`GET /docs`: Swagger UI over /openapi.json, with its files from the package `flask-swagger-ui`.

/docs ─▶ pages/docs.html ─▶ /docs/static/… ─┬─ pages/              ours
                                            └─ flask_swagger_ui    Swagger UI's own, unchanged
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services
from webapp.static_files import StaticFiles, strict_headers

PAGES = Path(__file__).parent / "pages"
_THEIRS = ("swagger-ui-bundle.js", "swagger-ui.css")


def page(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /docs`."""
    return _files().answer(call, "docs.html")


def asset(services: Services, call: HttpRequest, name: str) -> HttpResponse:
    """`GET /docs/static/<name>`."""
    return _files().answer(call, name)


@cache
def _files() -> StaticFiles:
    files = {path.name: path for path in PAGES.iterdir()}
    # Found, not imported: the package brings a blueprint of Flask that is of no use here.
    spec = find_spec("flask_swagger_ui")
    if spec is not None and spec.origin is not None:
        files |= {name: Path(spec.origin).parent / "dist" / name for name in _THEIRS}
    # Swagger UI's style sheet has its icons in `data:` addresses.
    return StaticFiles(files, strict_headers("'self' data:"))
