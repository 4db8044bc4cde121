"""`pip install bunch`, `bunch init`, `bunch up --reload`: an environment and a folder without this checkout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli.commands import COMMANDS
from config.environ import ROOT
from config.native import hot_path
from tests.e2e.client import Api, connected
from tests.installed import SOURCES, build_wheel, install
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed") / "env")


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
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                ["bunch", "up", "--port=0", "--web-workers=1", "--no-flower", "--reload"],
                cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT,
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


def test_the_wheel_has_every_file_of_the_packages_and_nothing_at_top_level(wheel: Path) -> None:
    """A script or a page that is left out would be missed by whoever installs it, and by no other test."""
    names = set(zipfile.ZipFile(wheel).namelist())
    packed = {
        name.removeprefix("bunch/_app/") for name in names if name.startswith("bunch/") and not name.endswith(".so")
    }
    there = {
        str(path.relative_to(ROOT))
        for each in SOURCES
        for path in (ROOT / each).rglob("*")
        if path.is_file() and path.suffix not in {".so", ".pyc"} and ".new" not in path.suffixes
    }
    assert packed == there
    assert {name.partition("/")[0] for name in names} == {"bunch", "bunch-0.1.0.dist-info"}
    # Compiled where it was compiled for the checkout.
    assert any(name.endswith(".so") for name in names) == (hot_path is not None)


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
