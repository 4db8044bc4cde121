"""The files of docker/ against the code that they are about. No engine is needed; building them is another matter."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from cli.run import roles
from config.environ import ROOT
from config.schema import Settings
from config.settings import load_settings

DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each.get("image") == "bunch"}
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SECONDS = {"s": 1, "m": 60}


def instructions(name: str) -> list[list[str]]:
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{name} ")]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for words in instructions("ENV") for pair in words)


def filled(value: str) -> str:
    """As compose fills it in where every variable is set."""
    return re.sub(r"\$\{\w+:[?-].*\}", "user:password", re.sub(r"\$\{\w+:\+(.*?)\}", r"\1", value))


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_role_with_settings_that_hold(name: str) -> None:
    """Nobody finds out at the first start that a name is misspelt, or that two settings contradict each other."""
    (command,) = OURS[name]["command"]
    assert getattr(roles, command).name == command
    environment = image_environment() | OURS[name]["environment"]
    given = {key: filled(value) for key, value in environment.items()}
    settings = load_settings(given, str(ROOT / "bunch.toml"))
    assert settings.redis_url
    assert settings.models


@pytest.mark.parametrize("name", OURS)
def test_a_service_has_the_time_to_drain_and_comes_back(name: str) -> None:
    found = re.fullmatch(r"(\d+)([sm])", OURS[name]["stop_grace_period"])
    assert found is not None
    assert int(found[1]) * SECONDS[found[2]] > Settings().graceful_timeout_s
    assert OURS[name]["restart"] == "unless-stopped"


def test_all_that_services_name_is_there() -> None:
    for name, each in SERVICES.items():
        waited_for = set(each.get("depends_on", ()))
        assert waited_for <= set(SERVICES), name
        for source, *_ in (volume.split(":") for volume in each.get("volumes", ())):
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name}: {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {source}"
        healthy = [other for other, how in _conditions(each) if how == "service_healthy"]
        assert all("healthcheck" in SERVICES[other] for other in healthy), name


def test_nothing_listens_beyond_loopback() -> None:
    for name, each in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", ())), name
    host = {name for name, each in SERVICES.items() if each.get("network_mode") == "host"}
    assert host == {"web", "grpc", "prometheus", "grafana"}
    assert SERVICES["web"]["environment"]["BUNCH_HTTP_HOST"] == "127.0.0.1"
    assert SERVICES["grpc"]["environment"]["BUNCH_GRPC_HOST"] == "127.0.0.1"
    assert "--web.listen-address=127.0.0.1:9090" in SERVICES["prometheus"]["command"]
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_traces_go_to_the_jaeger_of_the_same_profile() -> None:
    jaeger = SERVICES["jaeger"]
    assert jaeger["profiles"] == SERVICES["prometheus"]["profiles"]
    published = {each.rpartition(":")[2] for each in jaeger["ports"]}
    for name, each in OURS.items():
        endpoint = urlsplit(filled(each["environment"]["BUNCH_OTLP_ENDPOINT"]))
        on_host = each.get("network_mode") == "host"
        assert endpoint.hostname == ("127.0.0.1" if on_host else "jaeger"), name
        assert str(endpoint.port) in published
        # Without TRACES there is none, and nothing of OpenTelemetry is loaded.
        assert each["environment"]["BUNCH_OTLP_ENDPOINT"].startswith("${TRACES:+")


def test_redis_keeps_what_was_accepted() -> None:
    command = shlex.split(SERVICES["valkey"]["command"][-1])
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"


def test_the_image_has_every_package_and_its_context_lets_it_in() -> None:
    copied = {source for words in instructions("COPY") for source in words[:-1] if not words[0].startswith("--from")}
    for source in copied:
        # What may be absent is named with a star.
        assert (ROOT / source).exists() or source == "requirements.lock*", source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert packages | {"manage.py", "bunch.toml"} <= copied
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= let_in


def test_signals_reach_the_role() -> None:
    assert instructions("STOPSIGNAL") == [["SIGTERM"]]
    # In the form that starts no shell, which would keep them to itself.
    assert re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE) == ['["tini", "--", "python", "manage.py"]']
    (state_dir,) = (value for key, value in image_environment().items() if key == "BUNCH_STATE_DIR")
    assert Path(state_dir).is_absolute()


def _conditions(service: dict[str, Any]) -> list[tuple[str, str]]:
    named = service.get("depends_on", {})
    return [(other, how["condition"]) for other, how in named.items()] if isinstance(named, dict) else []
