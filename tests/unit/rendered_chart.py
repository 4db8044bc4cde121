"""The Helm chart as the tests see it: rendered by Helm itself, as Python values."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tools import render_chart

Object = dict[str, Any]
# Kubernetes' schemas of the oldest and of the newest version that are tried.
VERSIONS = ("v1.27.0", "v1.37.0")


def require_helm() -> None:
    """Skip the test, loudly, where Helm's library is not installed."""
    try:
        render_chart.helm()
    except ImportError:
        pytest.skip("NOT TESTED: helm-python-sdk is missing; pip install -r requirements-dev.txt")


@cache
def _example(name: str) -> str:
    return json.dumps(list(objects(render_chart.example(name))))


def example(name: str) -> list[Object]:
    """The objects of an example, rendered once; the caller's own copy."""
    require_helm()
    given: list[Object] = json.loads(_example(name))
    return given


def objects(values: Mapping[str, Any]) -> Iterator[Object]:
    require_helm()
    yield from yaml.load_all(render_chart.render(values), Loader=yaml.CSafeLoader)


def of_kind(given: list[Object], kind: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in given if each["kind"] == kind}


def pods(given: list[Object]) -> dict[str, Object]:
    """The pod of each Deployment."""
    return {name: each["spec"]["template"] for name, each in of_kind(given, "Deployment").items()}


def container(pod: Object) -> Object:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def environment(pod: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(pod)["env"]}


def matches(labels: Mapping[str, str], pod: Object) -> bool:
    there: Mapping[str, str] = pod["metadata"]["labels"]
    return labels.items() <= there.items()


@cache
def kubernetes_schema(version: str, kind: str, api_version: str) -> jsonschema_rs.Draft202012Validator:
    """Kubernetes' own schema of a kind, in which nothing unknown is allowed."""
    group, _, number = api_version.rpartition("/")
    stem = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    schema = _schema(version, stem)
    return jsonschema_rs.Draft202012Validator(schema, retriever=lambda _: _definitions(version))


def _definitions(version: str) -> Any:
    return _schema(version, "_definitions")


@cache
def _schema(version: str, stem: str) -> Any:
    try:
        folder = importlib.resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")
    except ImportError:
        pytest.skip("NOT TESTED: kubernetes-validate is missing; pip install -r requirements-dev.txt")
    return json.loads(folder.joinpath(f"{version}-local-strict", f"{stem}.json").read_text())
