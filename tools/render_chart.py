"""`python -m tools.render_chart`: the manifests in deploy/manifests, one file for each example of the Helm chart.

deploy/helm/bunch ──▶ Helm 4, as a library (`helm-python-sdk`) ──▶ deploy/manifests/<example>.yaml
  examples/*.yaml ───▲

They are for clusters without Helm, and show what a change of a template changes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CHART = DEPLOY / "helm" / "bunch"
MANIFESTS = DEPLOY / "manifests"
EXAMPLES = tuple(sorted(path.stem for path in (CHART / "examples").glob("*.yaml")))
# Of the release and of its namespace.
NAME = "bunch"
_HEAD = """\
# Made by `make chart` from deploy/helm/bunch/examples/{example}.yaml: change that. docs/deploy.md says how to apply it.
"""


def helm() -> Any:
    """The module of Helm's library. Raises ImportError where it is not installed."""
    return importlib.import_module("helm_python.chart")


def example(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())
    return values


def render(values: Mapping[str, Any]) -> str:
    """All objects of the chart, as YAML documents.

    Raises:
        helm_python.errors.HelmError: the values do not fit the schema, or contradict each other.
    """
    files: dict[str, str] = helm().Chart.load(str(CHART)).render(dict(values), name=NAME, namespace=NAME)
    documents = (
        document.strip("\n")
        for name in sorted(files)
        if name.endswith(".yaml")
        for document in files[name].split("\n---\n")
    )
    return "".join(f"---\n{each.removeprefix('---').strip()}\n" for each in documents if each.strip("-\n "))


def manifest(name: str) -> str:
    """The content of the file of an example."""
    lines = (line.rstrip() for line in render(example(name)).splitlines())
    return _HEAD.format(example=name) + "".join(f"{line}\n" for line in lines)


def main() -> None:
    MANIFESTS.mkdir(exist_ok=True)
    for name in EXAMPLES:
        (MANIFESTS / f"{name}.yaml").write_text(manifest(name))
        print(f"deploy/manifests/{name}.yaml")


if __name__ == "__main__":
    main()
