"""`GET /openapi.json`: the description of the API, from which clients can be generated.

Made from `webapp.routes`; `webapp.api.schemas` has the schemas of bodies and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from config.settings import Settings
from webapp.api.binary_bodies import IN_QUERY, binary_bodies
from webapp.api.schemas import ERROR_OF, components
from webapp.errors import STATUS_OF
from webapp.identity.base import Access
from webapp.request import HttpRequest, HttpResponse
from webapp.routing import Route
from webapp.services import Services

_BEARER = {"type": "http", "scheme": "bearer", "description": "An API key, a JSON Web Token or a service token."}


def document(services: Services, call: HttpRequest) -> HttpResponse:
    services.description = services.description or msgspec.json.encode(describe(services.settings, services.routes))
    return HttpResponse(200, services.description, call.request_id)


def describe(settings: Settings, routes: Iterable[Route]) -> dict[str, Any]:
    """The document, OpenAPI 3.1, with the schemas of each model, and with security if callers need credentials."""
    told = [route for route in routes if route.name]
    paths: dict[str, Any] = {}
    for route in told:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, settings)
    described: dict[str, Any] = {"schemas": components(settings, [route.body for route in told if route.body])}
    if settings.auth != "off":
        described["securitySchemes"] = {"bearer": _BEARER}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bunch", "version": "1", "description": "Dynamic batching for GPU models."},
        "paths": paths,
        "components": described,
    }


def parameter(name: str, where: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    """A parameter of an operation; `where` is path, query or header."""
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}


def link(operation: str, parameter: str, value: str, description: str) -> dict[str, Any]:
    """A link from a response to another operation, whose `parameter` is `value` of the response."""
    return {"operationId": operation, "parameters": {parameter: value}, "description": description}


def answer(schema: str | Mapping[str, Any], description: str) -> dict[str, Any]:
    """A JSON response; `schema` is the name of a component, or the schema itself."""
    return {"description": description, "content": _json(schema)}


def _operation(route: Route, settings: Settings) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": answer(route.answer, route.summary), **_errors(route, *route.errors)}
    if route.links:
        responses["200"]["links"] = route.links
    responses["200"]["content"] |= {kind: {"schema": schema} for kind, schema in route.also.items()}
    if route.headers:
        responses["200"]["headers"] = route.headers
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {**responses, **route.responses, **_errors(route, *_refusals(route.access, settings))},
    }
    parameters = [*route.parameters]
    if route.body is not None:
        bodies = binary_bodies(settings) if route.binary else {}
        if bodies:
            parameters += IN_QUERY
        further = {kind: {"schema": schema} for kind, schema in (*route.takes.items(), *bodies.items())}
        operation["requestBody"] = {"required": True, "content": _json(route.body.__name__) | further}
        if route.examples:
            examples = {name: {"value": value} for name, value in route.examples.items()}
            operation["requestBody"]["content"]["application/json"]["examples"] = examples
    if route.callbacks:
        operation["callbacks"] = route.callbacks
    if parameters:
        operation["parameters"] = parameters
    if settings.auth != "off" and route.access is not Access.PUBLIC:
        operation["security"] = [{"bearer": []}]
    return operation


def _refusals(access: Access, settings: Settings) -> tuple[int, ...]:
    """The statuses of callers without access. With auth off programs on this machine may call, others get 403."""
    if access is Access.PUBLIC:
        return ()
    if settings.auth == "off":
        return (403,)
    return (401, 403, 429) if access is Access.OPERATOR else (401, 429)


def _json(schema: str | Mapping[str, Any]) -> dict[str, Any]:
    described = {"$ref": f"#/components/schemas/{schema}"} if isinstance(schema, str) else schema
    return {"application/json": {"schema": described}}


def _errors(route: Route, *statuses: int) -> dict[str, Any]:
    schema = ERROR_OF.get(route.envelope, "Error")
    return {str(status): answer(schema, _meaning(status)) for status in statuses}


def _meaning(status: int) -> str:
    """The codes with that status, or its name where only another API has it."""
    return " or ".join(sorted(code for code, each in STATUS_OF.items() if each == status)) or HTTPStatus(status).phrase
