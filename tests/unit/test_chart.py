"""The Helm chart against the code that it starts: names, times, probes, and who is given what."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import manage
from config.environ import ROOT
from config.secrets.secret_settings import HOLDERS
from config.settings import Settings, load_settings
from tests.unit import rendered_chart as chart
from tests.unit.rendered_chart import Object, container, environment, of_kind, pods
from tools import render_chart
from webapp.routes import ROUTES

EXAMPLES = render_chart.EXAMPLES
CR_SCHEMAS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("chart_schemas.yaml").read_text())
DEFS = {
    "name": {"type": "object", "additionalProperties": False, "required": ["name"], "properties": {"name": {}}},
    "number": {"type": "string", "pattern": "^[0-9.]+$"},
}
SECRETS = {
    "redis_url": "redis://:secret@redis:6379/0",
    "broker_url": "redis://:secret@broker:6379/0",
    "database_url": "postgresql://bunch:secret@db/bunch",
    "flower_basic_auth": "user:password",
}


@pytest.fixture(params=EXAMPLES)
def given(request: pytest.FixtureRequest) -> list[Object]:
    return chart.example(request.param)


def settings_of(pod: Object, given: list[Object], folder: Path) -> Settings:
    """The settings that the role in a pod would read, with the files that are mounted there."""
    config = folder / "bunch.toml"
    config.write_text(of_kind(given, "ConfigMap")["bunch"]["data"]["bunch.toml"])
    ours = {name: value for name, value in environment(pod).items() if name.startswith("BUNCH_")}
    for name in ours:
        if name.endswith("_FILE"):
            field = name.removeprefix("BUNCH_").removesuffix("_FILE").lower()
            (folder / field).write_text(SECRETS.get(field, "0123456789abcdef" * 4))
            ours[name] = str(folder / field)
    assert ours.pop("BUNCH_CONFIG") == "/etc/bunch/bunch.toml"
    role = container(pod)["args"][0]
    return load_settings(ours, str(config), None if role == "autoscale" else role)


def parsed(arguments: list[str]) -> click.Context:
    """The context of a command line, which click refuses where a command or an option does not exist."""
    name, *rest = arguments
    group = manage.cli
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    return command.make_context(name, list(rest))


def test_manifests_are_what_the_chart_renders() -> None:
    """Otherwise run `make chart`."""
    chart.require_helm()
    assert {path.stem for path in render_chart.MANIFESTS.iterdir()} == set(EXAMPLES)
    for name in EXAMPLES:
        assert (render_chart.MANIFESTS / f"{name}.yaml").read_text() == render_chart.manifest(name), name


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    chart.require_helm()
    said = render_chart.helm().lint(str(render_chart.CHART), {}, strict=True)
    # An icon would be a link to somewhere.
    assert [each["error"] for each in said["messages"]] == ["icon is recommended"]


def test_the_chart_starts_the_version_that_it_is_shipped_with() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = yaml.safe_load((render_chart.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == version


def test_every_object_fits_its_schema(given: list[Object]) -> None:
    for each in given:
        kind = each["kind"]
        if kind in CR_SCHEMAS:
            validator = chart.jsonschema_rs.Draft202012Validator({**CR_SCHEMAS[kind], "$defs": DEFS})
            faults = [(error.instance_path, error.message) for error in validator.iter_errors(each["spec"])]
            assert not faults, (kind, faults)
            continue
        for version in chart.VERSIONS:
            validator = chart.kubernetes_schema(version, kind, each["apiVersion"])
            faults = [(error.instance_path, error.message) for error in validator.iter_errors(each)]
            assert not faults, (kind, each["metadata"]["name"], faults)


def test_the_schemas_find_what_is_misspelt() -> None:
    broken = chart.example("two-pools")
    deployment = of_kind(broken, "Deployment")["bunch-web"]
    container(deployment["spec"]["template"])["livenessProbe"]["periodSecond"] = 5
    validator = chart.kubernetes_schema(chart.VERSIONS[-1], "Deployment", "apps/v1")
    assert [error.message for error in validator.iter_errors(deployment)]
    scaled = of_kind(broken, "ScaledObject")["bunch-worker-large"]["spec"] | {"minReplicas": 1}
    scaled_schema = chart.jsonschema_rs.Draft202012Validator({**CR_SCHEMAS["ScaledObject"], "$defs": DEFS})
    assert list(scaled_schema.iter_errors(scaled))


def test_every_role_starts_with_settings_that_hold(given: list[Object], tmp_path: Path) -> None:
    """Every `BUNCH_…` of a pod is a setting, its value is valid, and the role has all the secrets that it asks for."""
    for name, pod in pods(given).items():
        settings = settings_of(pod, given, tmp_path)
        assert settings.redis_url, name
        assert settings.models, name
        assert settings.auth != "off", name


def command_of_the_image() -> list[str]:
    """The command line of the image; where its entry point is a script of docker/, what that becomes at its end."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    _, _, *command = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[0])
    script = ROOT / "docker" / command[0]
    if not script.is_file():
        return list(command)
    (becomes,) = re.findall(r'^exec (.+) "\$@"$', script.read_text(), re.MULTILINE)
    return str(becomes).split()


def test_every_command_is_one(given: list[Object]) -> None:
    prefix = yaml.safe_load((render_chart.CHART / "values.yaml").read_text())["image"]["command"]
    assert prefix == command_of_the_image()
    for name, pod in pods(given).items():
        only = container(pod)
        parsed(only["args"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = only.get(probe, {}).get("exec", {}).get("command")
            if command:
                assert command[: len(prefix)] == prefix, name
                assert parsed(command[len(prefix) :]).params["role"] == only["args"][0], name


def test_a_pool_is_one_of_the_file(given: list[Object], tmp_path: Path) -> None:
    for pod in pods(given).values():
        arguments = container(pod)["args"]
        if arguments[0] == "worker":
            pools = settings_of(pod, given, tmp_path).pools
            assert (parsed(arguments).params["pool"] or None) in (set(pools) or {None})


def test_ports_and_probes_are_those_of_the_role(given: list[Object]) -> None:
    public = {route.path for route in ROUTES if route.method == "GET"}
    for name, pod in pods(given).items():
        only, settings = container(pod), environment(pod)
        listens = {each["name"]: each["containerPort"] for each in only.get("ports", ())}
        role = only["args"][0]
        prefix = {"web": "HTTP", "grpc": "GRPC", "flower": "FLOWER"}.get(role)
        assert bool(listens) == bool(prefix), name
        for port in listens.values():
            assert str(port) == settings[f"BUNCH_{prefix}_PORT"], name
            assert settings[f"BUNCH_{prefix}_HOST"] == "0.0.0.0", name
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if asked := only.get(probe, {}).get("httpGet"):
                assert asked["path"] in public, name
                assert asked["port"] in listens, name
        if role not in {"autoscale", "flower"}:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= only.keys(), name


def test_there_is_time_to_drain(given: list[Object], tmp_path: Path) -> None:
    """A pod that is killed while it drains breaks its callers' connections."""
    for name, pod in pods(given).items():
        settings = settings_of(pod, given, tmp_path)
        only = container(pod)
        role = only["args"][0]
        if role == "autoscale":
            continue
        first = int(only["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in only else 0
        batch_s = max(model.timeout_ms for model in settings.models.values()) / 1000 if role == "worker" else 0
        assert pod["spec"]["terminationGracePeriodSeconds"] >= settings.graceful_timeout_s + first + batch_s + 5, name
        # Endpoints go first where there are any.
        assert bool(first) == (role in {"web", "grpc"}), name


def test_a_roll_out_waits_for_the_slowest_model(given: list[Object], tmp_path: Path) -> None:
    for each in of_kind(given, "Deployment").values():
        pod = each["spec"]["template"]
        if container(pod)["args"][0] == "worker":
            models = settings_of(pod, given, tmp_path).models.values()
            slowest_s = max(model.start_timeout_ms for model in models) / 1000
            assert each["spec"]["progressDeadlineSeconds"] >= slowest_s + 300
            # GPUs are seldom free for one more.
            assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_a_role_is_given_its_own_secrets_alone(given: list[Object]) -> None:
    for name, pod in pods(given).items():
        role = container(pod)["args"][0]
        (volume,) = (each["projected"] for each in pod["spec"]["volumes"] if each["name"] == "secrets")
        mounted = {item["path"] for source in volume["sources"] for item in source["secret"]["items"]}
        if role == "autoscale":
            assert mounted <= {"redis_url", "broker_url"}
        else:
            assert all(role in HOLDERS[field] for field in mounted), (name, mounted)
        asked = {f"BUNCH_{field.upper()}_FILE": f"/etc/bunch-secrets/{field}" for field in mounted}
        assert {key: value for key, value in environment(pod).items() if key.endswith("_FILE")} == asked
        assert volume["defaultMode"] == 0o440
        # No secret is in the environment, where `describe` and a crash report show it.
        assert not environment(pod).keys() & {f"BUNCH_{field.upper()}" for field in HOLDERS}


def test_the_chart_knows_every_secret() -> None:
    values = yaml.safe_load((render_chart.CHART / "values.yaml").read_text())
    snake = {re.sub(r"(?=[A-Z])", "_", name).lower() for name in values["secrets"]}
    assert snake - {"scrape_token"} == set(HOLDERS)


def test_no_pod_has_more_rights_than_it_needs(given: list[Object]) -> None:
    for name, pod in pods(given).items():
        spec, only = pod["spec"], container(pod)
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == 10001, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert only["resources"]["limits"]["memory"], name
        # What a role writes is in the state folder and in temporary files.
        writable = {mount["mountPath"] for mount in only["volumeMounts"] if not mount.get("readOnly")}
        assert any(environment(pod)["BUNCH_STATE_DIR"].startswith(f"{path}/") for path in writable), name


def test_what_names_something_finds_it(given: list[Object]) -> None:
    there = pods(given)
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        for name, each in of_kind(given, kind).items():
            spec = each["spec"]
            labels: Mapping[str, str] = (
                spec["selector"] if kind == "Service" else spec.get("selector", spec.get("podSelector"))["matchLabels"]
            )
            assert any(chart.matches(labels, pod) for pod in there.values()), (kind, name)
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        for each in of_kind(given, kind).values():
            assert each["spec"]["scaleTargetRef"]["name"] in there
            # Or an upgrade would set the number back.
            assert "replicas" not in of_kind(given, "Deployment")[each["spec"]["scaleTargetRef"]["name"]]["spec"]
    # Each pod has a policy, and none is found by another role's labels.
    policies = of_kind(given, "NetworkPolicy").values()
    for name, pod in there.items():
        assert sum(chart.matches(each["spec"]["podSelector"]["matchLabels"], pod) for each in policies) == 1, name
    for name, each in of_kind(given, "Deployment").items():
        found = [other for other, pod in there.items() if chart.matches(each["spec"]["selector"]["matchLabels"], pod)]
        assert found == [name]
