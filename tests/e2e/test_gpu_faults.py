"""GPUs that overheat, fill up, hang and die under a running stack: two workers with a GPU each, and a fake driver."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.fleet.registry_reader import Fleet, WorkerRow
from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

BINDING = Path(__file__).parent.parent / "fakes" / "driver"
MODELS = """\
[models.m]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 20, item_ms = 0 }
max_batch_size = 8
policy = "fixed"
max_wait_ms = 400
[pools.one]
models = ["m"]
devices = ["GPU-a"]
[pools.two]
models = ["m"]
devices = ["GPU-b"]
"""


class Gpus:
    """The GPUs that the fake driver shows, and the workers that use them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gpus.json"
        self.stack: Stack | None = None
        self.set()

    def set(self, **gpus: Any) -> None:
        """Change one or the other (`a`, `b`), or the driver (`hang`); all else is well."""
        sound = {"busy": 25, "memory": [10, 100]}
        new = self.file.with_suffix(".new")
        shown = {f"GPU-{name}": sound | gpus.get(name, {}) for name in "ab"}
        new.write_text(json.dumps(shown | ({"hang": True} if "hang" in gpus else {})))
        new.replace(self.file)

    def worker(self, name: str) -> WorkerRow | None:
        assert self.stack is not None
        with self.stack.redis() as redis:
            rows = [row for row in Fleet(redis).workers() if row.pool == name]
        return max(rows, key=lambda row: row.started_at, default=None)

    def is_ready(self, name: str) -> bool:
        row = self.worker(name)
        return row is not None and row.state == "running" and [each.state for each in row.models] == ["ready"]

    def well(self) -> bool:
        rows = [self.worker(name) for name in ("one", "two")]
        return all(row and row.gpus and row.health == "healthy" for row in rows) and all(
            map(self.is_ready, ("one", "two"))
        )


@pytest.fixture(scope="module")
def all_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    folder = tmp_path_factory.mktemp("gpus")
    gpus = Gpus(folder)
    path = os.pathsep.join(filter(None, (str(BINDING), os.environ.get("PYTHONPATH"))))
    stack = gpus.stack = Stack(folder, MODELS, environment={"NVML_FAKE": str(gpus.file), "PYTHONPATH": path})
    try:
        stack.start("--web-workers=1", "--no-flower", admission="off", **PATIENT)
        yield gpus
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture
def gpus(all_gpus: Gpus) -> Gpus:
    all_gpus.set()
    wait_until(all_gpus.well, what="all GPUs are well")
    return all_gpus


@pytest.fixture
def api(all_gpus: Gpus) -> Iterator[Api]:
    assert all_gpus.stack is not None
    with connected(all_gpus.stack.port) as api:
        yield api


def test_what_the_driver_tells_is_shown(gpus: Gpus, api: Api) -> None:
    row = gpus.worker("one")
    assert row is not None
    lines = api.get("/metrics").body.decode().splitlines()
    for metric, value in (
        ("utilization", "0.25"),
        ("memory_used_bytes", "10.0"),
        ("memory_total_bytes", "100.0"),
        ("temperature_celsius", "40.0"),
    ):
        assert f'bunch_gpu_{metric}{{device="GPU-a",worker="{row.name}"}} {value}' in lines
    assert api.get("/internal/health").json["gpu_utilization"] == 0.25


def test_a_gpu_that_is_too_hot_degrades_its_worker_which_goes_on(gpus: Gpus, api: Api) -> None:
    gpus.set(a={"throttle": 0x40})
    wait_until(lambda: (row := gpus.worker("one")) and row.health == "degraded", what="it is degraded")
    row, other = gpus.worker("one"), gpus.worker("two")
    assert row is not None
    assert other is not None
    assert (row.state, row.reasons) == ("running", ("GPU GPU-a runs slower: it is too hot",))
    assert other.health == "healthy"
    assert api.get("/internal/health").json["status"] == "degraded"
    assert api.infer(1).status == 200


def test_batches_are_smaller_while_memory_is_nearly_full(gpus: Gpus, api: Api) -> None:
    def sizes() -> set[int]:
        return {answer.json["metadata"]["batch_size"] for answer in api.all(range(48), "m")}

    assert max(sizes()) > 4
    gpus.set(a={"memory": [95, 100]}, b={"memory": [95, 100]})

    def pressed() -> list[int | None]:
        rows = [gpus.worker(name) for name in ("one", "two")]
        return [each.pressed_size for row in rows if row for each in row.models]

    wait_until(lambda: pressed() == [4, 4], what="batches are limited")
    assert max(sizes()) <= 4
    gpus.set()
    wait_until(lambda: pressed() == [None, None], what="they are not any more")


def test_an_error_of_an_application_replaces_the_process_on_that_gpu_alone(gpus: Gpus, api: Api) -> None:
    def pid(name: str) -> int | None:
        row = gpus.worker(name)
        return row.models[0].pid if row and row.models[0].state == "ready" else None

    before, other = pid("one"), pid("two")
    gpus.set(a={"xids": [31]})
    wait_until(lambda: pid("one") not in {before, None}, what="another process")
    row = gpus.worker("one")
    assert row is not None
    assert row.models[0].restarts == 1
    assert pid("two") == other
    assert api.infer(1).status == 200


def test_a_driver_that_hangs_stops_neither_heartbeats_nor_batches(gpus: Gpus, api: Api) -> None:
    assert gpus.stack is not None
    gpus.set(hang=True)
    with gpus.stack.redis() as redis:
        beats = redis.zrange("bunch:workers", 0, -1, withscores=True)

        def later() -> list[tuple[bytes, float]]:
            now = redis.zrange("bunch:workers", 0, -1, withscores=True)
            return [] if set(now) & set(beats) else now

        # The first may have been on its way before.
        for _ in range(3):
            beats = wait_until(later, what="both beat again")
    assert all(answer.status == 200 for answer in api.all(range(16), "m"))


def test_a_gpu_that_falls_off_the_bus_under_load_costs_no_request(gpus: Gpus, api: Api) -> None:
    stack = gpus.stack
    assert stack is not None
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(api.all, range(600), "m")
        gpus.set(a={"xids": [79]})
        wait_until(lambda: "one-1 exited with 1" in stack.logs(), what="the worker has gone")
        # The next worker finds the GPU in order.
        gpus.set()
        assert {answer.status for answer in answers.result()} == {200}
    log = (stack.state_dir / "log" / "one-1.log").read_text()
    assert "goes offline, and gives its requests back: GPU GPU-a has failed: XID 79" in log
    wait_until(gpus.well, what="a new worker on that GPU")
