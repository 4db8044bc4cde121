"""The parts of a route, and the table that everything else about an endpoint follows from.

    webapp.routes.ROUTES ──▶ RouteTable ─┬─ fast: (method, path) → handler, access   webapp.app, in front of Flask
                                         ├─ each route → a rule of Flask's URL map   webapp.app
                                         ├─ access_of(method, path), before a body   webapp.app
                                         ├─ envelope_of(method, path), if refused    webapp.app
                                         ├─ open_to_pages(path)                      webapp.cors
                                         └─ each named route → /openapi.json         webapp.api.openapi

The table knows no services: handlers get them with each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from webapp.errors import Envelope, error_answer
from webapp.identity.base import Access
from webapp.request import HttpResponse

Handler = Callable[..., HttpResponse]
"""`handler(services, call, **path) -> HttpResponse`; raises BunchError or ApiError to refuse."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Args:
        path: in Flask's form; only the last part may be a `<name>`.
        access: who may call it. There is no default, so that no endpoint is open by omission.
        name: OpenAPI's `operationId`, the name in generated clients. Without one the route belongs to the operations
            page: it is not described, and pages of other sites may not call it.
        body: the type that validates the body.
        answer: the schema of a 200: the name of a component in `webapp.api.schemas`, or a JSON Schema.
        errors: the statuses of its refusals, except those that follow from `access`.
        parameters: OpenAPI's parameters, made by `webapp.api.openapi.parameter`.
        also: schemas of a 200 by further media types.
        examples: bodies by name, for the reference and for generated clients.
        links: OpenAPI's links of a 200, made by `webapp.api.openapi.link`.
        responses: OpenAPI's further responses by status; one for 200 replaces `answer`.
        fast: answered before Flask is asked. Only for a path without a `<name>`, and not for streams.
        envelope: the form of its errors.
        tag: OpenAPI's tag, under which the reference lists it.
    """

    method: str
    path: str
    access: Access
    handler: Handler
    name: str = ""
    summary: str = ""
    body: type[msgspec.Struct] | None = None
    answer: str | Mapping[str, Any] = ""
    errors: Sequence[int] = ()
    parameters: Sequence[Mapping[str, Any]] = ()
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    responses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fast: bool = False
    envelope: Envelope = error_answer
    tag: str = "Bunch"

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace("<", "{").replace(">", "}")


class RouteTable:
    """The routes of one application."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)
        self.fast = {(each.method, each.path): (each.handler, each.access) for each in routes if each.fast}
        self._exact: dict[str, dict[str, Route]] = {}
        self._below: dict[str, dict[str, Route]] = {}
        for route in routes:
            beginning, part, _ = route.path.partition("<")
            (self._below if part else self._exact).setdefault(beginning, {})[route.method] = route

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def access_of(self, method: str, path: str) -> Access:
        """Return who may call a path. An unknown one is for identified callers, so strangers learn nothing of it.

        A method that the path does not have counts as the one that the fewest may use.
        """
        found = self._find(path)
        if not found:
            return Access.TENANT
        return found[method].access if method in found else max((each.access for each in found.values()), key=_strict)

    def envelope_of(self, method: str, path: str) -> Envelope:
        """Return the form of the errors at a path."""
        found = self._find(path)
        route = found.get(method) or next(iter(found.values()), None)
        return error_answer if route is None else route.envelope

    def open_to_pages(self, path: str) -> bool:
        """Return whether pages of the sites in `BUNCH_CORS_ORIGINS` may call a path."""
        return all(
            bool(route.name) and route.access in {Access.PUBLIC, Access.TENANT} for route in self._find(path).values()
        )

    def _find(self, path: str) -> Mapping[str, Route]:
        """The routes of the path, by method."""
        return self._exact.get(path) or next(
            (routes for beginning, routes in self._below.items() if path.startswith(beginning)), {}
        )


def _strict(access: Access) -> int:
    return (Access.PUBLIC, Access.TENANT, Access.EITHER, Access.OPERATOR).index(access)
