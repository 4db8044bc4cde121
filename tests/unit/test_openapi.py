"""The API's description is whole: what generators of clients need to keep every call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from config.settings import ModelSettings, Settings
from webapp.api.openapi import describe
from webapp.routes import ROUTES

DECLARED = {
    "type": "object",
    "properties": {"tags": {"type": "array"}, "kinds": {"type": ["array", "null"], "items": {"$ref": "#/$defs/kind"}}},
    "$defs": {"kind": {"enum": ["array"], "anyOf": [{"$ref": "#/$defs/other"}]}, "other": {"type": "array"}},
    "examples": [{"type": "array"}],
}
METHODS = {"get", "post", "delete"}


@pytest.fixture(params=["off", "keys"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    model = ModelSettings(name="m", source="a:B", input_schema=DECLARED)
    return describe(Settings(auth=request.param, models={"m": model}, default_model="m"), ROUTES)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert method in METHODS
            yield f"{method.upper()} {path}", operation


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it that may be one."""
    if isinstance(value, list):
        for each in value:
            yield from schemas(each)
    elif isinstance(value, dict):
        yield value
        for key, each in value.items():
            if key != "examples":
                yield from schemas(each)


def test_every_call_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_every_route_is_described(document: dict[str, Any]) -> None:
    routes = {f"{route.method} {route.template}" for route in ROUTES if not route.path.startswith(("/ops", "/docs"))}
    assert {name for name, _ in operations(document)} == routes


def test_every_array_says_what_is_in_it(document: dict[str, Any]) -> None:
    arrays = [each for each in schemas(document["components"]) if each.get("type") in ("array", ["array", "null"])]
    assert len(arrays) > 4
    assert all("items" in each for each in arrays)
    # What is a value and no schema is as it was.
    assert document["components"]["schemas"]["m.input"]["examples"] == DECLARED["examples"]


def test_every_reference_leads_to_a_component(document: dict[str, Any]) -> None:
    known = document["components"]["schemas"]
    places = {each["$ref"] for each in schemas(document) if isinstance(each.get("$ref"), str)}
    assert "#/components/schemas/m.input.kind" in places
    assert places <= {f"#/components/schemas/{name}" for name in known}


def test_links_lead_from_what_was_queued_to_what_came_of_it(document: dict[str, Any]) -> None:
    by_name = {operation["operationId"]: operation for _, operation in operations(document)}
    links = [
        link
        for operation in by_name.values()
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert links
    for link in links:
        takes = {each["name"] for each in by_name[link["operationId"]]["parameters"]}
        assert set(link["parameters"]) <= takes
    accepted = document["paths"]["/v1/inference"]["post"]["responses"]["202"]
    assert accepted["links"]["result"]["operationId"] == "get_result"
    assert "Location" in accepted["headers"]


def test_who_may_be_refused_is_told_so(document: dict[str, Any]) -> None:
    answers = document["paths"]["/v1/models"]["get"]["responses"]
    assert ("401" in answers) is ("securitySchemes" in document["components"])
    assert "403" in document["paths"]["/metrics"]["get"]["responses"]


@pytest.mark.parametrize("path", ["/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"])
def test_the_binary_extension_is_described_both_ways(document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    answered = operation["responses"]["200"]
    for content in (operation["requestBody"]["content"], answered["content"]):
        assert content.keys() == {"application/json", "application/octet-stream"}
        assert "Inference-Header-Content-Length" in content["application/octet-stream"]["schema"]["description"]
    assert answered["headers"].keys() == {"Inference-Header-Content-Length"}
    assert "Inference-Header-Content-Length" in {each["name"] for each in operation["parameters"]}


def test_the_schemas_of_a_version_are_components_whose_names_openapi_allows() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    models = {name: ModelSettings(name=name, source="a:B", input_schema=schema) for name in ("m", "m@2")}
    components = describe(Settings(models=models, default_model="m"), ROUTES)["components"]["schemas"]
    assert {"m.input", "m.2.input"} <= components.keys()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in components)
