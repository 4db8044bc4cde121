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
from functools import partial
from typing import Any

import msgspec

from webapp.errors import Envelope, error_answer
from webapp.identity.base import Access
from webapp.request import HttpResponse

_MODEL = "<model>"

Handler = Callable[..., HttpResponse]
"""`handler(services, call, **path) -> HttpResponse`; raises BunchError or ApiError to refuse."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Args:
        path: in Flask's form. Paths with the same beginning, up to their first `<name>`, have the same access.
        access: who may call it. There is no default, so that no endpoint is open by omission.
        name: OpenAPI's `operationId`, the name in generated clients. Without one the route belongs to the operations
            page: it is not described, and pages of other sites may not call it.
        body: the type that validates the body.
        answer: the schema of a 200: the name of a component in `webapp.api.schemas`, or a JSON Schema.
        errors: the statuses of its refusals, except those that follow from `access`.
        parameters: OpenAPI's parameters, made by `webapp.api.openapi.parameter`.
        also: schemas of a 200 by further media types.
        takes: schemas of a body by further media types.
        binary: takes bodies that are the input itself, where a model does (`webapp.binary_inputs`).
        headers: OpenAPI's headers of a 200.
        examples: bodies by name, for the reference and for generated clients.
        callbacks: OpenAPI's callbacks.
        links: OpenAPI's links of a 200, made by `webapp.api.openapi.link`.
        responses: OpenAPI's further responses by status; one for 200 replaces `answer`.
        fast: answered before Flask is asked. Only for a path without a `<name>` other than `<model>`, and not for
            streams.
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
    takes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    binary: bool = False
    headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Mapping[str, Any] = field(default_factory=dict)
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
    """The routes of one application, which serves `models`.

    Raises:
        ValueError: paths that cannot be told apart before they are routed have different access.
    """

    def __init__(self, routes: Sequence[Route], models: Sequence[str] = ()) -> None:
        self._routes = tuple(routes)
        self.fast = {place: found for route in routes if route.fast for place, found in _places(route, models)}
        self._exact: dict[str, dict[str, Route]] = {}
        self._below: dict[str, dict[str, Route]] = {}
        for route in routes:
            beginning, part, _ = route.path.partition("<")
            known = (self._below if part else self._exact).setdefault(beginning, {})
            if known.setdefault(route.method, route).access is not route.access:
                raise ValueError(f"{route.path} is not for {known[route.method].access.name}")

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

    def find(self, method: str, path: str) -> Route | None:
        """Return the route of a path, by its beginning alone if it has parts; None where there is none."""
        return self._find(path).get(method)

    def envelope_of(self, method: str, path: str) -> Envelope:
        """Return the form of the errors at a path."""
        found = self._find(path)
        route = found.get(method) or next(iter(found.values()), None)
        if route is not None:
            return route.envelope
        # A path that there is not, below one whose paths all have one form.
        first = path.split("/", 2)[1:2]
        forms = {each.envelope for each in self._routes if each.path.split("/", 2)[1:2] == first}
        return forms.pop() if len(forms) == 1 else error_answer

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


def _places(route: Route, models: Sequence[str]) -> Iterator[tuple[tuple[str, str], tuple[Handler, Access]]]:
    """The places of a fast route: method and path, of each model if it has one in its path."""
    if _MODEL not in route.path:
        yield (route.method, route.path), (route.handler, route.access)
        return
    for model in models:
        yield (route.method, route.path.replace(_MODEL, model)), (partial(route.handler, model=model), route.access)


def _strict(access: Access) -> int:
    return (Access.PUBLIC, Access.TENANT, Access.EITHER, Access.OPERATOR).index(access)
