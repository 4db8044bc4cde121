"""The files of docker/ for Prometheus and Grafana, against Prometheus' own tool and against what is exposed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from config.keys import Shard
from config.settings import load_settings
from config.tiers import Tier
from tasks.fleet.process_register import Presence
from tasks.fleet.registry_reader import ExecutorRow, WorkerRow
from tasks.fleet.scaling import ScaleBoard, ScaleRow, summed
from tasks.observability import metrics
from tasks.observability.metrics import MetricsFlusher
from tests.shards import places_of
from tests.tools import promtool
from webapp.api import health
from webapp.app import make_services
from webapp.request import HttpRequest

DOCKER = Path(__file__).parents[2] / "docker"
RULES = DOCKER / "prometheus" / "rules.yml"
DASHBOARD = DOCKER / "grafana" / "dashboards" / "bunch.json"
_NAME = re.compile(r"\bbunch_[a-z0-9_]+")


def check(*arguments: object, given: bytes = b"") -> None:
    done = subprocess.run(
        [promtool(), *map(str, arguments)], input=given, capture_output=True, check=False, timeout=240
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def _counted() -> None:
    """At least one sample of each metric, with all of its labels."""
    for metric in metrics.REGISTRY._collector_to_names:
        child = metric.labels(*map(_value, metric._labelnames)) if metric._labelnames else metric
        (child.inc if hasattr(child, "inc") else child.observe)(1)


def _value(label: str) -> str:
    return {"tier": "paid", "code": "OK", "reason": "full"}.get(label, "echo")


@pytest.fixture
def exposition(redis: Redis, tmp_path: Path, _counted: None) -> bytes:
    config = tmp_path / "bunch.toml"
    config.write_text('[models.echo]\nsource = "workers.models.echo:Echo"\n')
    services = make_services(load_settings({}, str(config)), places_of(redis, 2))
    MetricsFlusher(redis).flush()
    worker = WorkerRow("w", "host", 1, 0.0, (ExecutorRow("echo", "echo/0", "ready"),))
    redis.zadd(Shard().workers(), {"w": redis.time()[0] * 1000})
    redis.set(Shard().worker("w"), msgspec.json.encode(worker))
    pools = tuple(ScaleRow(1, 1, 0, 0, 0.5, 0.0, pool=pool) for pool in ("a", "b"))
    ScaleBoard(redis).write(summed(pools))
    Presence(redis, "web", lambda: services.settings.models).beat()
    return health.metrics(services, HttpRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"})).body


def names_in(exposition: bytes) -> set[str]:
    families = text_string_to_metric_families(exposition.decode())
    return {sample.name for family in families for sample in family.samples}


def test_prometheus_has_nothing_to_say_against_the_exposition(exposition: bytes) -> None:
    check("check", "metrics", given=exposition)


def test_the_rules_are_rules_and_do_what_they_say() -> None:
    check("check", "config", DOCKER / "prometheus" / "prometheus.yml")
    check("check", "rules", RULES)
    check("test", "rules", DOCKER / "prometheus" / "rules_test.yml")


def test_every_alert_is_tested_and_says_where_to_read_on() -> None:
    rules = RULES.read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    tested = (DOCKER / "prometheus" / "rules_test.yml").read_text()
    assert alerts
    assert [name for name in alerts if f"alertname: {name}" not in tested] == []
    guide = (DOCKER.parent / "docs" / "oncall.md").read_text().lower()
    headings = re.findall(r'do: "docs/oncall\.md: (.*)"', rules)
    assert len(headings) == len(alerts)
    assert [each for each in headings if f"## {each}" not in guide] == []


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(path: Path, exposition: bytes) -> None:
    text = path.read_text()
    if path.suffix == ".json":
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    named = set(_NAME.findall(text))
    assert named
    assert named - names_in(exposition) == set()


def test_the_dashboard_shows_the_metrics_of_the_contract() -> None:
    text = DASHBOARD.read_text()
    contract = (
        *("requests_total", "request_seconds", "queue_seconds", "queue_depth", "queue_oldest_seconds", "batch_size"),
        *("batch_fill_seconds", "batches_total", "compute_seconds", "executor_busy_seconds_total", "retries_total"),
        *("dead_lettered_total", "redelivered_total", "cancelled_before_compute_total", "expired_total"),
        *("collapsed_total", "cache_hits_total", "shed_total", "workers", "slo_attainment", "slo_burn_rate"),
    )
    assert [name for name in contract if f"bunch_{name}" not in text] == []


def test_objectives_are_exposed_for_each_tier_and_window(exposition: bytes) -> None:
    found = {
        (sample.labels["tier"], sample.labels["window"])
        for family in text_string_to_metric_families(exposition.decode())
        if family.name == "bunch_slo_burn_rate"
        for sample in family.samples
    }
    assert found == {(tier.value, window) for tier in Tier for window in ("5m", "1h")}
