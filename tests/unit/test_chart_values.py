"""The values of the Helm chart: each is documented, has a type, and does what it says; what cannot work is refused."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from config.environ import ROOT
from tests.unit import rendered_chart as chart
from tests.unit.rendered_chart import container, environment, of_kind, pods
from tools import render_chart
from webapp.routes import ROUTES

VALUES = (render_chart.CHART / "values.yaml").read_text()
SCHEMA = json.loads((render_chart.CHART / "values.schema.json").read_text())
POOLS = '[models.a]\nsource = "m:A"\n[pools.small]\nmodels = ["a"]\n[pools.big]\nmodels = ["a"]\n'
KEDA: dict[str, Any] = {"config": {"inline": POOLS}, "pools": {"small": {}, "big": {}}, "keda": {"enabled": True}}


def keys_of(values: Any, schema: dict[str, Any], path: str = "") -> list[tuple[str, set[str], set[str]]]:
    """The keys in which values and schema differ."""
    schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "properties" not in schema or not isinstance(values, dict):
        return []
    here = [(path, set(values), set(schema["properties"]) - {"global"})]
    for key, value in values.items():
        here += keys_of(value, schema["properties"].get(key, {}), f"{path}.{key}")
    return here


def test_every_value_has_a_type_and_every_type_a_value() -> None:
    for path, values, types in keys_of(yaml.safe_load(VALUES), SCHEMA):
        assert values == types, path


def test_every_value_is_explained() -> None:
    """By a comment above it or beside it, apart from what is in Kubernetes' own form."""
    kubernetes = {"resources", "requests", "limits", "env", "nodeSelector", "tolerations", "affinity"}
    for above, line in itertools.pairwise(VALUES.splitlines()):
        key = re.match(r" *([A-Za-z]+):", line)
        if key and key[1] not in kubernetes:
            assert above.lstrip().startswith("#") or re.search(r"  +# \S", line), line


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"auth": "off"}, "auth"),
        ({"settings": {"LOG-LEVEL": "x"}}, "LOG-LEVEL"),
        ({"settings": {"REDIS_URL": "redis://:secret@r"}}, "REDIS_URL"),
        ({"settings": {"BUNCH_LOG_LEVEL": "DEBUG"}}, "BUNCH_LOG_LEVEL"),
        ({"wep": {}}, "wep"),
        ({"worker": {"gpus": 1}}, "gpus"),
        ({"secrets": {"messageSecret": {"name": ""}}}, "messageSecret"),
        ({"secrets": {"databaseUrl": {"name": ""}}}, "set secrets.databaseUrl"),
        ({"config": {"inline": ""}}, "exactly one of config.inline and config.path"),
        ({"config": {"path": "/models/bunch.toml"}}, "exactly one of config.inline and config.path"),
        ({"config": {"inline": "[models"}}, "config.inline is not TOML"),
        ({"config": {"inline": POOLS}}, r"\[pools\] of config.inline has \(big, small\)"),
        ({"pools": {"small": {}}}, r"pools has \(small\)"),
        ({"flower": {"enabled": True}, "secrets": {"flowerBasicAuth": {"name": ""}}}, "secrets.flowerBasicAuth"),
        ({"keda": {"enabled": True, "trigger": "prometheus"}}, "keda.serverAddress"),
        ({"worker": {"scale": {"min": 5, "max": 4}}}, "above its scale.max"),
        ({"worker": {"scale": {"min": 0}}, "keda": {"enabled": True}, "settings": {"METRICS": "off"}}, "METRICS on"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], said: str) -> None:
    chart.require_helm()
    with pytest.raises(Exception, match=said):
        render_chart.render(values)


@pytest.mark.parametrize(
    ("value", "written"),
    [(16777216, "16777216"), (0.5, "0.5"), (False, "false"), ('a "b" & c', 'a "b" & c'), ("0755", "0755")],
)
def test_a_setting_is_written_as_it_was_meant(value: object, written: str) -> None:
    given = list(chart.objects({"settings": {"MAX_BODY_BYTES": value}}))
    for pod in pods(given).values():
        assert environment(pod)["BUNCH_MAX_BODY_BYTES"] == written


def test_times_follow_the_settings() -> None:
    model = '[models.a]\nsource = "m:A"\ntimeout_ms = 90_500\nstart_timeout_ms = 1_800_000\n'
    file = f"{model}[server]\ngraceful_timeout_ms = 60000"
    given = list(chart.objects({"config": {"inline": file}}))
    assert pods(given)["bunch-web"]["spec"]["terminationGracePeriodSeconds"] == 60 + 5 + 10
    assert pods(given)["bunch-worker"]["spec"]["terminationGracePeriodSeconds"] == 60 + 91 + 10
    assert of_kind(given, "Deployment")["bunch-worker"]["spec"]["progressDeadlineSeconds"] == 1800 + 900
    # The environment goes over the file.
    over = list(chart.objects({"config": {"inline": file}, "settings": {"GRACEFUL_TIMEOUT_MS": 1000}}))
    assert pods(over)["bunch-ops"]["spec"]["terminationGracePeriodSeconds"] == 1 + 10
    newer = list(chart.objects({"config": {"inline": f"{model}[models.a.versions.2]\ntimeout_ms = 120_000\n"}}))
    assert pods(newer)["bunch-worker"]["spec"]["terminationGracePeriodSeconds"] == 30 + 120 + 10
    in_image = {"config": {"inline": "", "path": "/models/bunch.toml"}, "worker": {"timeoutSeconds": 20}}
    said = list(chart.objects(in_image))
    assert pods(said)["bunch-worker"]["spec"]["terminationGracePeriodSeconds"] == 30 + 20 + 10
    assert environment(pods(said)["bunch-worker"])["BUNCH_CONFIG"] == "/models/bunch.toml"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_a_worker_has_its_gpus(resource: str) -> None:
    given = list(chart.objects({"worker": {"gpu": {"resource": resource, "count": 2}, "runtimeClassName": "nvidia"}}))
    pod = pods(given)["bunch-worker"]
    assert container(pod)["resources"]["limits"] == {"memory": "4Gi", resource: 2}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    without = pods(list(chart.objects({})))["bunch-worker"]
    assert container(without)["resources"]["limits"] == {"memory": "4Gi"}
    assert not {"tolerations", "runtimeClassName"} & without["spec"].keys()


def test_roles_without_models_may_have_a_smaller_image() -> None:
    def images(**image: object) -> dict[str, str]:
        given = pods(list(chart.objects({"image": image})))
        return {name.removeprefix("bunch-"): container(pod)["image"] for name, pod in given.items()}

    assert images(repository="r/mine", tag="1") == dict.fromkeys(("web", "ops", "worker"), "r/mine:1")
    slim = images(repository="r/mine", tag="1", slim={"repository": "r/bunch", "tag": "2-slim"})
    assert slim == {"worker": "r/mine:1", "web": "r/bunch:2-slim", "ops": "r/bunch:2-slim"}
    digest = f"sha256:{'0' * 64}"
    assert images(repository="r/mine", slim={"digest": digest})["web"] == f"r/mine@{digest}"


def test_a_pool_has_its_own_values_and_else_those_of_every_worker() -> None:
    values = {
        **KEDA,
        "worker": {"gpu": {"count": 1}, "nodeSelector": {"zone": "a"}},
        "pools": {"small": {"gpu": {"resource": "nvidia.com/mig-1g.10gb"}, "scale": {"min": 0, "max": 14}}, "big": {}},
    }
    given = list(chart.objects(values))
    small, big = (pods(given)[f"bunch-worker-{pool}"] for pool in ("small", "big"))
    assert container(small)["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == 1
    assert container(big)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert small["spec"]["nodeSelector"] == big["spec"]["nodeSelector"] == {"zone": "a"}
    assert container(small)["args"] == ["worker", "--pool", "small"]
    scaled = of_kind(given, "ScaledObject")
    bounds = {name: (each["spec"]["minReplicaCount"], each["spec"]["maxReplicaCount"]) for name, each in scaled.items()}
    assert bounds == {"bunch-worker-small": (0, 14), "bunch-worker-big": (1, 4)}
    arguments = container(pods(given)["bunch-autoscale"])["args"]
    limits = {arguments[n + 1] for n, each in enumerate(arguments) if each == "--limits"}
    assert limits == {"small=0:14", "big=1:4"}


def test_keda_asks_the_frontends_for_each_pool() -> None:
    given = list(chart.objects(KEDA))
    service = of_kind(given, "Service")["bunch-web"]
    for name, each in of_kind(given, "ScaledObject").items():
        (trigger,) = each["spec"]["triggers"]
        url = urlsplit(trigger["metadata"]["url"])
        assert url.hostname == f"bunch-web.{render_chart.NAME}.svc"
        assert url.port == service["spec"]["ports"][0]["port"]
        assert url.path in {route.path for route in ROUTES}
        assert parse_qs(url.query) == {"pool": [name.removeprefix("bunch-worker-")]}
        assert trigger["authenticationRef"]["name"] in of_kind(given, "TriggerAuthentication")


def test_keda_may_ask_prometheus_instead() -> None:
    values = {**KEDA, "keda": {"enabled": True, "trigger": "prometheus", "serverAddress": "http://prometheus:9090"}}
    given = list(chart.objects(values))
    assert not of_kind(given, "TriggerAuthentication")
    documented = (ROOT / "docs" / "reference.md").read_text()
    for name, each in of_kind(given, "ScaledObject").items():
        query = each["spec"]["triggers"][0]["metadata"]["query"]
        assert f'pool="{name.removeprefix("bunch-worker-")}"' in query
        assert all(f"`{metric}`" in documented for metric in re.findall(r"bunch_\w+", query))


def test_frontends_of_a_fleet_at_zero_get_the_request_that_wakes_it() -> None:
    """`/readyz` is 503 without a worker: all frontends would leave the Service, and nobody could call for one."""

    def asked(minima: dict[str, int], *, keda: bool) -> str:
        pools = {name: {"scale": {"min": least}} for name, least in minima.items()}
        given = list(chart.objects({**KEDA, "pools": pools, "keda": {"enabled": keda}}))
        return str(container(pods(given)["bunch-web"])["readinessProbe"]["httpGet"]["path"])

    assert asked({"small": 0, "big": 0}, keda=True) == "/healthz"
    assert asked({"small": 0, "big": 1}, keda=True) == "/readyz"
    assert asked({"small": 0, "big": 0}, keda=False) == "/readyz"


def test_prometheus_gets_the_rules_of_docker_and_the_job_that_they_expect() -> None:
    watched = {"serviceMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "p"}}
    given = list(chart.objects({"monitoring": watched, "secrets": {"scrapeToken": {"name": "scrape"}}}))
    rules = (ROOT / "docker" / "prometheus" / "rules.yml").read_text()
    assert of_kind(given, "PrometheusRule")["bunch"]["spec"] == yaml.safe_load(rules)
    dashboard = (ROOT / "docker" / "grafana" / "dashboards" / "bunch.json").read_text()
    assert of_kind(given, "ConfigMap")["bunch-dashboard"]["data"]["bunch.json"] == dashboard
    monitor = of_kind(given, "ServiceMonitor")["bunch"]
    service = of_kind(given, "Service")["bunch-web"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "scrape", "key": "scrape-token"}
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in rules
    assert monitor["metadata"]["labels"]["release"] == "p"


def test_an_ingress_has_the_paths_of_callers_and_those_of_operators_only_if_asked() -> None:
    def admitted(paths: set[str], **values: object) -> set[str]:
        ingress = {"enabled": True, "host": "h", **values}
        rendered = of_kind(list(chart.objects({"web": {"ingress": ingress}})), "Ingress")["bunch-web"]
        (rule,) = rendered["spec"]["rules"]
        exact = {each["path"] for each in rule["http"]["paths"]}
        prefixes = tuple(
            f"{each['path'].rstrip('/')}/" for each in rule["http"]["paths"] if each["pathType"] == "Prefix"
        )
        return {path for path in paths if path in exact or f"{path}/".startswith(prefixes)}

    paths = {route.path for route in ROUTES}
    # Operators' own, and all below them; what they have below /v2 asks for their token.
    closed = {path for path in paths if path.split("/")[1] in {"metrics", "internal", "ops"}}
    assert closed
    assert admitted(paths) == paths - closed
    assert admitted(paths, operators=True) == paths
