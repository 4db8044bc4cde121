"""`pip install bunch`, `bunch init`, `bunch up --reload`: an environment and a folder without this checkout."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from cli.commands import COMMANDS
from config.environ import ROOT
from tests.compose import GIVEN
from tests.dockerfile import Image, base_image, build
from tests.e2e.client import Api, connected
from tests.e2e.compose_stack import ComposeStack
from tests.e2e.stack import PATIENT
from tests.fakes.tls import Authority
from tests.tools import tool
from tests.waiting import PATIENCE_S, wait_until

TMP = "/tmp/"  # noqa: S108 - of the container
# The services of compose that are ours, in the order in which they are started.
ROLES = ("worker", "web", "grpc", "ops", "flower")
# What the wheel is made of.
SOURCES = ("bunch", "batching", "cli", "config", "tasks", "webapp", "workers")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which pip finds what a model asks for."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def image(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image without torch: the steps of docker/Dockerfile, in a plain folder."""
    folder = tmp_path_factory.mktemp("image")
    python = base_image(folder, packages)
    return build(ROOT / "docker" / "Dockerfile", ROOT, folder, target="slim", PYTHON=python)


@pytest.fixture(scope="module")
def programs(image: Image) -> Path:
    """The folder of `bunch`, in the environment into which the wheel was installed."""
    return image.root.parent / "installed-slim" / "opt" / "bunch" / "bin"


@pytest.fixture(scope="module")
def environment(programs: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUNCH_", "PYTHON"))}
    return kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run(environment: dict[str, str], cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def folder(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `bunch init` leaves it, with a `tasks.py` and a `config` of the author's own, of which the model uses one."""
    made = tmp_path_factory.mktemp("mine")
    done = run(environment, made, "bunch", "init")
    assert done.returncode == 0, done.stderr
    (made / "tasks.py").write_text("WORDS = 'words'\n")
    (made / "config").mkdir()
    (made / "config" / "__init__.py").write_text("raise RuntimeError('not of Bunch')\n")
    model = made / "model.py"
    text = model.read_text().replace('"words"', "WORDS")
    model.write_text(text.replace("from bunch", "from tasks import WORDS\nfrom bunch"))
    return made


class Up:
    """`bunch up --reload` in a folder."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._output = folder / "output.txt"
        patient = {f"BUNCH_{name.upper()}": str(value) for name, value in PATIENT.items()}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                ["bunch", "up", "--port=0", "--web-workers=1", "--no-flower", "--reload"],
                cwd=folder, env=environment | patient, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    def was_ready(self, times: int) -> bool:
        assert self.process.poll() is None, self.output
        return self.output.splitlines().count("ready") >= times

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, self.output


@pytest.fixture(scope="module")
def up(environment: dict[str, str], folder: Path) -> Iterator[Up]:
    running = Up(environment, folder)
    try:
        wait_until(lambda: running.was_ready(1), what="ready")
        yield running
        running.stop()
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@pytest.fixture
def api(up: Up, environment: dict[str, str], folder: Path) -> Iterator[Api]:
    status = json.loads(run(environment, folder, "bunch", "status", "--json").stdout)
    port = urlsplit(status["url"]).port
    assert port is not None
    with connected(port) as api:
        yield api


def output_of(api: Api) -> Any:
    return api.post("/v1/inference", {"input": "A bunch of celery"}).json.get("output")


def test_the_wheel_has_every_file_of_the_packages_and_nothing_at_top_level(image: Image) -> None:
    """A script or a page that is left out would be missed by whoever installs it, and by no other test."""
    (wheel,) = (image.root.parent / "wheel" / "wheels").iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    packed = {
        name.removeprefix("bunch/_app/") for name in names if name.startswith("bunch/") and not name.endswith(".so")
    }
    there = {
        str(path.relative_to(ROOT))
        for each in SOURCES
        for path in (ROOT / each).rglob("*")
        if path.is_file() and path.suffix != ".so" and not {".new", "__pycache__"} & {*path.suffixes, *path.parts}
    }
    assert packed == there
    assert {name.partition("/")[0] for name in names} == {"bunch", "bunch-0.1.0.dist-info"}
    # The image has the compiled hot path, or is not built.
    assert any("_hot_path" in name and name.endswith(".so") for name in names)


def test_nothing_but_bunch_can_be_imported(environment: dict[str, str], folder: Path, programs: Path) -> None:
    others = [name for name in SOURCES if name != "bunch"]
    script = (
        f"import importlib.util as u; print([n for n in {others!r} if u.find_spec(n)], u.find_spec('bunch').origin)"
    )
    done = run(environment, programs, "python", "-P", "-c", script)
    assert done.stdout.startswith("[] "), done.stdout + done.stderr
    assert str(programs.parent) in done.stdout


def test_the_command_has_all_commands(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, tmp_path, "bunch", "--help")
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert done.stdout.startswith("Usage: bunch ")
    # Messages name the command that there is.
    assert "start one with `bunch up`" in run(environment, tmp_path, "bunch", "queues").stderr
    assert "manage.py" not in run(environment, tmp_path, "bunch", "completion", "bash").stdout


def test_a_folder_is_served_with_the_modules_of_its_author(api: Api) -> None:
    assert output_of(api) == {"words": 4, "letters": 14}
    for page in ("/", "/docs", "/ops", "/openapi.json"):
        assert api.get(page).status == 200


def test_a_module_that_changes_is_served_and_one_that_is_broken_is_not(up: Up, api: Api, folder: Path) -> None:
    module = folder / "tasks.py"
    module.write_text("WORDS = 'parole'\n")
    wait_until(lambda: output_of(api) == {"parole": 4, "letters": 14}, what="the new module is served")
    module.write_text("WORDS = \n")
    wait_until(lambda: "SyntaxError" in up.output, what="it is refused")
    assert output_of(api) == {"parole": 4, "letters": 14}


def package(folder: Path, name: str, text: str) -> None:
    """A wheel of one module, as small as pip takes one."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in files)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for each, content in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(each, content)


@pytest.fixture(scope="module")
def modelled(environment: dict[str, str], packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `bunch init` whose model needs a package, with the Dockerfile of `bunch containerize`."""
    folder = tmp_path_factory.mktemp("modelled")
    package(packages, "loudly", "def said(text): return text.upper()\n")
    assert run(environment, folder, "bunch", "init").returncode == 0
    (folder / "requirements.txt").write_text("loudly==1.0\n")
    (folder / "model.py").write_text(
        "import loudly\n\n\ndef batchstring(inputs):\n    return [loudly.said(each) for each in inputs]\n"
    )
    (folder / "bunch.toml").write_text('[models.loud]\nsource = "model:batchstring"\ncache = false\n')
    done = run(environment, folder, "bunch", "containerize")
    assert done.returncode == 0, done.stderr
    assert {"**/.env", "**/*.key"} <= set((folder / ".dockerignore").read_text().splitlines())
    return folder


@pytest.fixture(scope="module")
def mine(image: Image, modelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image that it builds."""
    assert "bunch:0.1.0-slim" in (modelled / "Dockerfile").read_text()
    return build(modelled / "Dockerfile", modelled, tmp_path_factory.mktemp("mine"), BASE=image)


def started(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A container of the image, until it ends."""
    return run(dict(image.environment), image.path(image.cwd), *image.command_of(*arguments))


def test_an_image_with_a_model_has_its_packages_beside_those_of_bunch(mine: Image, packages: Path) -> None:
    assert (mine.user, mine.cwd) == ("10001:10001", "/models")
    done = started(mine, "check")
    assert "models: loud" in done.stdout, done.stdout + done.stderr
    (installed,) = (line for line in (packages / "log").read_text().splitlines() if "model-requirements" in line)
    # Whatever would change what Bunch runs on ends the build.
    assert f"--constraint {mine.root}/opt/bunch/constraints.txt" in installed


def test_a_mounted_folder_has_its_packages_in_a_volume(image: Image, modelled: Path) -> None:
    shutil.rmtree(image.path("/models"))
    shutil.copytree(modelled, image.path("/models"))
    done = started(image, "check")
    assert "are not installed: mount a volume at" in done.stderr
    assert "No module named 'loudly'" in done.stdout
    (image.path("/packages") / ".mounted").touch()
    done = started(image, "check")
    assert "models: loud" in done.stdout, done.stdout + done.stderr
    (folder,) = image.path("/packages").glob("[0-9a-f]*")
    # The next start finds them there.
    (folder / "loudly.py").write_text("def said(text): return text\n")
    assert "models: loud" in started(image, "check").stdout
    assert (folder / "loudly.py").read_text().endswith("return text\n")
    # The next image, with other packages of its own, does not.
    with image.path("/opt/bunch/constraints.txt").open("a") as constraints:
        constraints.write("# another image\n")
    assert "models: loud" in started(image, "check").stdout
    assert len(list(image.path("/packages").glob("[0-9a-f]*"))) == 2


@pytest.mark.parametrize(
    ("role", "asked"), [("worker", "health worker"), ("flower", "health flower"), ("up", "status")]
)
def test_the_health_of_a_container_is_that_of_its_role(image: Image, tmp_path: Path, role: str, asked: str) -> None:
    (tmp_path / "bunch").write_text('#!/bin/sh\necho "$*" > "$0.asked"\n')
    (tmp_path / "bunch").chmod(0o755)
    (tmp_path / "cmdline").write_bytes(
        b"\0".join([b"tini", b"--", b"/usr/local/bin/bunch-start", role.encode(), b"--name=x", b""])
    )
    path = f"{tmp_path}{os.pathsep}{image.environment['PATH']}"
    (check,) = image.healthcheck
    done = run({"PATH": path}, tmp_path, str(image.path(f"/usr/local/bin/{check}")), str(tmp_path / "cmdline"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bunch.asked").read_text().strip() == asked


@pytest.fixture(scope="module")
def containers(mine: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    given = {**GIVEN, "AUTH": "keys", "MESSAGE_SECRET": "s" * 64, "SERVICE_TOKEN": "t" * 64}
    running = ComposeStack(mine, tmp_path_factory.mktemp("compose"), given)
    try:
        running.start_valkey()
        for name in ROLES:
            running.start(name)
        for name in ROLES:
            wait_until(lambda name=name: running.is_healthy(name), what=f"{name} is healthy")
        yield running
        assert running.stop() == dict.fromkeys(("valkey", *ROLES), 0)
    finally:
        running.kill()


@pytest.fixture(scope="module")
def key(containers: ComposeStack) -> str:
    done = containers.run("ops", "bunch", "keys", "create", "--tier=paid", "--json")
    return str(json.loads(done.stdout)["secret"])


def test_every_role_of_compose_runs_with_its_own_environment(containers: ComposeStack, key: str) -> None:
    with connected(containers.ports["8000"]) as api:
        authorized = {"Authorization": f"Bearer {key}"}
        wait_until(lambda: api.get("/readyz").status == 200, what="ready")
        assert api.post("/v1/inference", {"input": "a"}).status == 401
        # One frontend may know the key a moment before the other.
        wait_until(
            lambda: api.post("/v1/inference", {"input": "quiet"}, **authorized).json.get("output") == "QUIET",
            what="the key is known",
        )


def test_the_proxy_of_compose_serves_https(containers: ComposeStack, key: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, secret = authority.certificate("127.0.0.1")
    certificate.rename(tmp_path / "tls.crt")
    secret.rename(tmp_path / "tls.key")
    text = containers.here((ROOT / "docker" / "nginx" / "nginx.conf").read_text())
    text = text.replace(TMP, f"{tmp_path}/").replace("/etc/bunch/tls/", f"{tmp_path}/")
    text = re.sub(r"listen ((?:\[::\]:)?)8443", lambda found: f"listen {found[1]}{containers.ports['8443']}", text)
    (tmp_path / "nginx.conf").write_text(text)
    nginx = subprocess.Popen([tool("nginx", "nginx"), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"])
    try:
        url, trusted = f"https://127.0.0.1:{containers.ports['8443']}", ssl.create_default_context(cafile=authority.ca)
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, verify=trusted, headers=headers) as client:
            wait_until(lambda: _answers(nginx, client), what="nginx answers")

            def is_served() -> bool:
                # A frontend may know the key a moment after another.
                answer = client.post("/v1/inference", json={"input": "quiet"})
                return (answer.status_code, answer.json().get("output")) == (200, "QUIET")

            wait_until(is_served, what="it serves")
    finally:
        nginx.terminate()
        nginx.wait()


def _answers(nginx: subprocess.Popen[bytes], client: httpx.Client) -> bool:
    assert nginx.poll() is None
    with contextlib.suppress(httpx.TransportError):
        return client.get("/healthz").status_code == 200
    return False


def test_settings_that_change_start_the_stack_again_unless_they_are_wrong(up: Up, api: Api, folder: Path) -> None:
    (folder / "tasks.py").write_text("WORDS = 'words'\n")
    file = folder / "bunch.toml"
    good = file.read_text()
    file.write_text(good.replace("timeout_ms = 3000", "timeout_ms = 'long'"))
    wait_until(lambda: "bunch.toml is not used" in up.output, what="it is refused")
    assert api.get("/healthz").status == 200
    file.write_text(good.replace('"words"', '"counted"').replace("[models.words]", "[models.counted]"))
    wait_until(lambda: up.was_ready(2), what="ready again")
    assert list(api.get("/readyz").json["models"]) == ["counted"]
