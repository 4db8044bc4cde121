"""`manage.py up` with everything real but the models: what is up, what comes back, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.stack import PATIENT
from tests.shards import inherited_environment
from tests.valkey import PrivateValkey

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
CONFIG = """\
[models.echo]
source = "workers.models.echo:Echo"
"""
BROKEN = """\
[models.broken]
source = "broken:Broken"
"""
BROKEN_MODULE = """\
class Broken:
    def load(self, device):
        raise RuntimeError("these weights are not there")

    def predict(self, inputs, parameters):
        return inputs
"""


class Up:
    """`manage.py up` on a free port, in a folder of its own."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        (folder / "bunch.toml").write_text(config)
        self._environment = inherited_environment()
        self._environment["BUNCH_STATE_DIR"] = str(folder / "var")
        self._environment["BUNCH_FLOWER_PORT"] = "0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, **settings: object) -> Up:
        self._environment |= {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "up", "--port", "0", *options],
                cwd=self.folder, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def text(self) -> str:
        return self.output.read_text()

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.manage("status", "--json").stdout)
        return document

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)

    def wait_ready(self) -> Up:
        self.wait_for(lambda: "ready" in self.text().splitlines())
        return self

    def stop(self) -> int:
        """Exit code after a Ctrl-C; nothing may be left."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        _, alive = psutil.wait_procs(below, timeout=60)
        for each in alive:
            each.kill()
        assert alive == []
        return code

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    each = Up(tmp_path_factory.mktemp("up")).start("--workers", "2", "--web-workers", "1", admission="off", **PATIENT)
    try:
        yield each.wait_ready()
    finally:
        each.end()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Up]:
    each = Up(tmp_path)
    yield each
    each.end()


def call(url: str, body: object = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_status_names_every_process(up: Up) -> None:
    done = up.manage("status", "--json")
    document = json.loads(done.stdout)
    roles = [row["role"] for row in document["processes"]]
    assert done.returncode == 0
    assert sorted(roles) == ["flower", "ops", "redis", "web", "worker", "worker"]
    assert all(row["state"] == "running" and psutil.pid_exists(row["pid"]) for row in document["processes"])


def test_an_input_comes_back(up: Up) -> None:
    status, document = call(up.status()["url"] + "/v1/inference", {"input": "A bunch"})
    assert (status, document["output"]) == (200, "A bunch")


def test_the_curl_line_works(up: Up) -> None:
    (line,) = [line for line in up.text().splitlines() if line.startswith("try")]
    done = subprocess.run(["bash", "-c", line.removeprefix("try")], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["model"] == "echo"


def test_bench_measures_both_loops(up: Up) -> None:
    for loop in (("--concurrency", "8"), ("--rps", "100")):
        done = up.manage("bench", "--json", "--duration", "1", *loop)
        document = json.loads(done.stdout)
        assert done.returncode == 0
        assert list(document["codes"]) == ["200"]
        assert document["mean_batch"] >= 1
        assert 0 < document["goodput_rps"] <= document["rps"]
        assert document["p50_ms"] <= document["p95_ms"] <= document["p99_ms"]


def test_bench_mixes_tiers_bursts_and_draws(up: Up, tmp_path: Path) -> None:
    plot = tmp_path / "run.svg"
    options = ("--rps", "60", "--burst", "6", "--mix", "enterprise=1,free=1", "--slo-ms", "5000", "--plot", str(plot))
    done = up.manage("bench", "--json", "--duration", "1", *options)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert set(document["tiers"]) == {"enterprise", "free"}
    assert sum(each["codes"]["200"] for each in document["tiers"].values()) == document["requests"]
    assert (document["offered_rps"], document["slo_ms"]) == (60, 5000)
    assert plot.read_text().lstrip().startswith("<?xml")


def test_the_fleet_is_shown(up: Up) -> None:
    def healthy() -> list[bool]:
        return [row["healthy"] for row in json.loads(up.manage("workers", "--json").stdout)]

    # On a machine that stands still a heartbeat may be late.
    up.wait_for(lambda: healthy() == [True, True])
    (model,) = json.loads(up.manage("models", "--json").stdout)
    assert (model["model"], model["ready"]) == ("echo", 2)
    assert {row["tier"] for row in json.loads(up.manage("queues", "--json").stdout)} == {"enterprise", "paid", "free"}


def test_flower_knows_the_queues_and_lets_nobody_change_anything(up: Up) -> None:
    url = up.status()["flower_url"]

    def queues() -> set[str]:
        return {each["name"] for each in call(url + "/api/queues/length")[1]["active_queues"]}

    up.wait_for(lambda: {"bunch.echo.enterprise", "bunch.echo.paid", "bunch.echo.free", "bunch.ops"} <= queues())
    workers: dict[str, str] = {}

    def all_known() -> bool:
        workers.update({name.partition("@")[0]: name for name in call(url + "/api/workers")[1]})
        return workers.keys() == {"worker1", "worker2", "ops"}

    up.wait_for(all_known)
    name = workers["worker1"]
    assert call(f"{url}/api/worker/shutdown/{name}", method="POST")[0] == 403


def test_a_role_can_be_added_by_hand(up: Up) -> None:
    third = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "worker", "--name", "third"],
        cwd=up.folder, env=up._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        up.wait_for(lambda: len(json.loads(up.manage("workers", "--json").stdout)) == 3)
        third.send_signal(signal.SIGTERM)
        assert third.wait(PATIENCE_S) == 0
    finally:
        third.kill()
        third.wait()


@pytest.mark.chaos
def test_a_worker_that_is_killed_comes_back(up: Up) -> None:
    workers = [row for row in up.status()["processes"] if row["role"] == "worker"]

    def lost() -> bool:
        with urllib.request.urlopen(up.status()["url"] + "/metrics", timeout=PATIENCE_S) as response:
            return b"bunch_workers_lost_total 1.0" in response.read()

    assert not lost()
    os.kill(workers[0]["pid"], signal.SIGKILL)
    # Not to be seen among the workers any more: it is counted.
    up.wait_for(lost)

    up.wait_for(lambda: sum(row["restarts"] for row in up.status()["processes"]) == 1)
    up.wait_for(lambda: up.manage("status").returncode == 0)
    assert call(up.status()["url"] + "/v1/inference", {"input": 1})[0] == 200


def test_ctrl_c_stops_everything(up: Up) -> None:
    assert up.stop() == 0
    assert up.text().splitlines()[-1] == "stopped"
    assert up.manage("status").returncode == 1


@pytest.mark.usefixtures("redis")
def test_a_server_that_is_named_is_used_and_left_running(fresh: Up, valkey: PrivateValkey) -> None:
    fresh.start("--no-flower", "--web-workers", "1", redis_url=valkey.url, **PATIENT).wait_ready()
    document = fresh.status()
    assert sorted(row["role"] for row in document["processes"]) == ["ops", "web", "worker"]
    assert (document["redis_url"], document["broker_url"], document["flower_url"]) == (valkey.url, valkey.url, None)
    assert call(document["url"] + "/v1/inference", {"input": 1})[0] == 200
    assert fresh.stop() == 0
    with valkey.client() as client:
        assert client.ping()


def test_a_model_that_does_not_load_is_shown_with_its_traceback(fresh: Up) -> None:
    (fresh.folder / "broken.py").write_text(BROKEN_MODULE)
    (fresh.folder / "bunch.toml").write_text(BROKEN)
    fresh.start("--no-flower", "--web-workers", "1")

    fresh.wait_for(lambda: "RuntimeError: these weights are not there" in fresh.text())
    fresh.wait_for(lambda: 'raise RuntimeError("these weights are not there")' in fresh.text())
    assert "ready" not in fresh.text().splitlines()
    assert fresh.manage("status").returncode == 1
    assert fresh.stop() == 0
