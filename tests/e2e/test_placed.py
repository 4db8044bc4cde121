"""Two workers, two devices each, three models in two pools: who runs what, and who notices when one pool is gone. And a
model behind two URLs of which one does not answer.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from cli.supervisor.ports import free_port
from tasks.fleet.registry_reader import ExecutorRow, Fleet
from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.fakes.api import DoublingApi
from tests.waiting import wait_until

MODELS = """\
default_model = "a"
[models.a]
source = "tests.fakes.models:Placed"
[models.b]
source = "tests.fakes.models:Placed"
[models.c]
source = "tests.fakes.models:Placed"
[models.api]
source = "http://127.0.0.1:{live}/predict"
urls = ["http://user:secret@127.0.0.1:{dead}/predict"]
[pools.fast]
models = ["a", "b"]
devices = ["cuda:0", "cuda:1"]
[pools.slow]
models = ["c", "api"]
devices = ["GPU-aaaa", "cpu"]
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    live = DoublingApi()
    live.start()
    stack = Stack(tmp_path_factory.mktemp("placed"), MODELS.format(live=live.server_port, dead=free_port()))
    try:
        yield stack.start("--web-workers=1", "--no-flower", admission="off", **PATIENT)
        stack.stop()
    finally:
        stack.kill()
        live.stop()


@pytest.fixture(scope="module")
def api(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


def placed(own: Stack) -> dict[str, list[dict[str, Any]]]:
    return {row["model"]: row["placement"] for row in json.loads(own.manage("models", "--json").stdout)}


def executors(own: Stack, model: str) -> list[ExecutorRow]:
    with own.redis() as redis:
        rows = [each for row in Fleet(redis).healthy() for each in row.models]
    return [each for each in rows if (each.model, each.state) == (model, "ready")]


def worker(own: Stack, name: str) -> int | None:
    (pid,) = [row.pid for row in own.rows() if row.name == name]
    return pid


def test_the_models_say_who_runs_them_and_each_process_sees_its_device_alone(own: Stack, api: Api) -> None:
    found = placed(own)
    replicas = found.pop("api")
    seen = {
        (name, each["pool"], each["worker"].partition("@")[0], each["device"])
        for name, rows in found.items()
        for each in rows
        if each["state"] == "ready"
    }
    assert seen == {
        *((name, "fast", "fast-1", device) for name in "ab" for device in ("cuda (0)", "cuda (1)")),
        *(("c", "slow", "slow-1", device) for device in ("cuda (GPU-aaaa)", "cpu")),
    }
    assert [(each["pool"], each["device"].partition("127.")[0]) for each in replicas] == [
        ("slow", "http://"),
        ("slow", "http://user:…@"),
    ]
    shown = {"cuda (0)": "0", "cuda (1)": "1", "cuda (GPU-aaaa)": "GPU-aaaa", "cpu": ""}
    for rows in found.values():
        for each in rows:
            # As it was started, not as the model may have changed it.
            assert psutil.Process(each["pid"]).environ()["CUDA_VISIBLE_DEVICES"] == shown[each["device"]]
    with own.redis() as redis:
        # What admission counts on for a model.
        counted = {name: redis.hkeys(f"bunch:pace:{name}") for name in "abc"}
        ids = {row.pool: row.id.encode() for row in Fleet(redis).healthy()}
    assert counted == {"a": [ids["fast"]], "b": [ids["fast"]], "c": [ids["slow"]]}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: api.infer(n, model="b").json["output"], range(40)))
    assert {tuple(each) for each in answers} <= {("cuda", "0"), ("cuda", "1")}


def test_each_pool_is_scaled_by_itself(own: Stack, api: Api) -> None:
    decided = own.manage("autoscale", "--export-only", "--min=2", "--max=2", "--duration=0", "--json")
    rows = [json.loads(line) for line in decided.stdout.splitlines()]
    assert [(row["pool"], row["models"], row["ready"], row["wanted"]) for row in rows] == [
        ("fast", ["a", "b"], 1, 2),
        ("slow", ["c", "api"], 1, 2),
    ]
    assert api.get("/internal/scale").json["wanted"] == 4
    assert api.get("/internal/scale?pool=slow").json["wanted"] == 2
    assert api.get("/internal/scale?model=a").json["pool"] == "fast"
    assert api.get("/internal/scale?pool=none").status == 404
    assert 'bunch_pool_workers_wanted{pool="slow"} 2.0' in api.get("/metrics").body.decode().splitlines()


def test_a_command_reaches_the_workers_that_serve_its_model_alone(own: Stack) -> None:
    done = own.manage("resume", "c", "--json")
    assert done.returncode == 0, done.stdout
    assert [node.partition("@")[0] for node in json.loads(done.stdout)["workers"]] == ["slow-1"]


def test_a_replica_that_is_away_costs_no_request_and_its_breaker_alone_opens(own: Stack, api: Api) -> None:
    def breakers() -> list[str]:
        return [each.breaker for each in executors(own, "api")]

    def opened() -> bool:
        answers = api.all(range(8), "api")
        assert [(answer.status, answer.json.get("output")) for answer in answers] == [(200, 2 * n) for n in range(8)]
        # None while a heartbeat is late.
        return breakers() in (["closed", "open"], ["closed", "half-open"])

    wait_until(opened, what="the breaker of the replica that is away opens")


def test_a_worker_that_is_killed_takes_nothing_of_the_other_pool_with_it(own: Stack, api: Api) -> None:

    def of_the_other_pool() -> set[int | None]:
        # While a heartbeat is late there are none.
        found = wait_until(lambda: len(rows := executors(own, "c")) == 2 and rows, what="both executors are shown")
        return {each.pid for each in found or ()} | {worker(own, "slow-1")}

    others = of_the_other_pool()
    killed = worker(own, "fast-1")
    assert killed
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda n: api.infer(n, model="c").status, range(100))
        os.kill(killed, signal.SIGKILL)
        assert set(answers) == {200}
    wait_until(lambda: worker(own, "fast-1") not in {killed, None}, what="a new worker")
    wait_until(lambda: len(executors(own, "a")) == 2, what="its executors")
    assert api.infer(1, model="a").status == 200
    assert of_the_other_pool() == others
