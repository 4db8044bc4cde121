"""A module beside bunch.toml may have a name that is also ours: each side imports its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batching.request import Done, Ok, Rejected, Work
from config.environ import ROOT
from config.settings import ModelSettings
from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from workers.executor.process_executor import ProcessExecutor

# A package, a module, a folder without `__init__.py`, and what is imported late.
FILES = {
    "config.py": "NAME = 'their config'\n",
    "tasks.py": "import config\nNAME = 'their tasks beside ' + config.NAME\ndef shout(text): return text.upper()\n",
    "workers/__init__.py": "from workers import inner\nNAME = inner.NAME\n",
    "workers/inner.py": "NAME = 'their workers'\n",
    "batching/helper.py": "NAME = 'their batching'\n",
    "webapp/__init__.py": "NAME = 'their webapp'\n",
    "theirs.py": """\
import multiprocessing
import pickle
import subprocess
import sys

import config
import tasks
import workers
from bunch import InputRejected


class Told(InputRejected):
    pass


class Model:
    def load(self, device):
        self.names = [config.NAME, tasks.NAME, workers.NAME]

    def predict(self, inputs, parameters):
        import batching.helper
        import webapp

        outputs = []
        for value in inputs:
            if value == "names":
                outputs.append([*self.names, batching.helper.NAME, webapp.NAME])
            elif value in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(value).Pool(1) as pool:
                    outputs.append(pool.map(tasks.shout, [value]))
            elif value == "pickle":
                outputs.append(str(pickle.loads(pickle.dumps(Told("again")))))
            elif value == "program":
                code = "import config, bunch; print(config.NAME)"
                outputs.append(subprocess.check_output([sys.executable, "-P", "-c", code], text=True).strip())
            elif value == "late":
                import json.tool
                import late_and_missing
            else:
                outputs.append(Told("refused"))
        return outputs
""",
    "bunch.toml": """\
[models.theirs]
source = "theirs:Model"
timeout_ms = 30000

[models.shout]
source = "workers.models.shout:batchstring"

[models.minilm]
source = "workers.models.minilm:MiniLM"
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "their own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "their own"


@pytest.fixture
def theirs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessExecutor]:
    # As a role has it (`config.environ.child_environment`): ours in front.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(folder))))
    model = ModelSettings(name="m", source="theirs:Model", timeout_ms=60_000, cache=False)
    executor = ProcessExecutor(model, 0, folder=str(folder))
    executor.start()
    try:
        assert executor.wait_ready(60), executor.error
        yield executor
    finally:
        executor.stop(1.0)


def ask(executor: ProcessExecutor, *values: Any) -> list[Any]:
    executor.send(Work("b", [msgspec.json.encode(each) for each in values], [b"{}"] * len(values)))
    done = executor.receive(60)
    assert isinstance(done, Done), done
    return [msgspec.json.decode(each.output) if isinstance(each, Ok) else each for each in done.outcomes]


def test_a_model_imports_its_own_modules_and_its_children_do(theirs: ProcessExecutor) -> None:
    names, *children, pickled, program, refused = ask(
        theirs, "names", "fork", "spawn", "forkserver", "pickle", "program", "?"
    )
    assert names == [
        "their config", "their tasks beside their config", "their workers", "their batching", "their webapp",
    ]  # fmt: skip
    assert children == [["FORK"], ["SPAWN"], ["FORKSERVER"]]
    assert pickled == "again"
    assert program == "their config"
    assert refused == Rejected("refused"), "one InputRejected, whoever imports it"


def test_ours_goes_on_after_it_has_stepped_aside(theirs: ProcessExecutor) -> None:
    (late,) = ask(theirs, "late")
    assert "late_and_missing" in late.message
    assert "theirs.py" in late.traceback
    assert ask(theirs, "names")[0][0] == "their config"


def test_shipped_models_are_found_beside_somebody_elses_workers(folder: Path) -> None:
    executor = ProcessExecutor(
        ModelSettings(name="m", source="workers.models.shout:batchstring", cache=False), 0, folder=str(folder)
    )
    executor.start()
    try:
        assert executor.wait_ready(60), executor.error
        assert ask(executor, "a", 3) == [
            "A",
            Rejected("this model takes strings; the input is a number", "InvalidInput"),
        ]
    finally:
        executor.stop(1.0)


def test_every_role_starts_where_they_lie(folder: Path) -> None:
    """`manage.py up` in that very folder, with what Celery and gunicorn make of the working directory."""
    check = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "check"],
        cwd=folder, env={**os.environ, "BUNCH_HTTP_PORT": "0", "BUNCH_STATE_DIR": str(folder / "var")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout + check.stderr
    stack = Stack(folder, FILES["bunch.toml"].partition("[models.minilm]")[0], cwd=folder)
    try:
        stack.start("--workers=1", "--web-workers=1", **PATIENT)
        with connected(stack.port) as api:
            assert api.infer("names", "theirs").json["output"][0] == "their config"
            assert api.infer("a", "shout").json["output"] == "A"
            assert api.infer("x", "theirs").status == 422
        stack.stop()
    finally:
        stack.kill()
