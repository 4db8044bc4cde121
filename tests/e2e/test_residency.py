"""Six models with room for two: none of their requests fails, and never are more loaded than have room."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from batching.policy import Adaptive
from batching.simulator import Affine, Recorded, Scenario
from batching.simulator.residency import OnDemand, simulate_residency
from tasks.fleet.registry_reader import ExecutorRow, Fleet, OnDemandRow
from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import Stack
from tests.waiting import wait_until

ROOM = 2
LOAD_MS, BATCH_MS = 200, 5
RATES_RPS = {"half": 8.0, **dict.fromkeys("bcdef", 1.6)}
DURATION_S = 6.0


def poisson_times(rate: float, seed: str) -> list[float]:
    draws, times = random.Random(seed), [0.0]
    while times[-1] < DURATION_S:
        times.append(times[-1] + draws.expovariate(rate))
    return times[1:-1]


ARRIVALS = {name: poisson_times(rate, name) for name, rate in RATES_RPS.items()}
MODELS = f"""\
default_model = "half"
[server]
max_resident = {ROOM}
# On a machine that others use, too, a load can take many times longer.
request_timeout_ms = 120000
""" + "".join(
    f"""
[models.{name}]
source = "tests.fakes.models:LoadsSlowly"
options = {{ load_ms = {LOAD_MS}, batch_ms = {BATCH_MS} }}
residency = "on_demand"
"""
    for name in RATES_RPS
)
BROKEN = """
[models.broken]
source = "tests.fakes.models:LoadsLater"
options = {{ until = "{until}" }}
residency = "on_demand"
"""


@pytest.fixture(scope="module")
def until(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file whose absence breaks `broken`."""
    return tmp_path_factory.mktemp("weights") / "weights"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, until: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("residency"), MODELS + BROKEN.format(until=until))
    try:
        yield stack.start("--web-workers=1", "--no-flower")
        with connected(stack.port) as api:
            # It also stops while a model loads.
            api.later(1, unloaded(stack)[0])
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def api(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


def rows(own: Stack) -> dict[str, ExecutorRow]:
    with own.redis() as redis:
        return {each.model: each for row in Fleet(redis).workers() for each in row.models}


def about(own: Stack, name: str) -> OnDemandRow:
    found = rows(own)[name].on_demand
    assert found is not None
    return found


def unloaded(own: Stack) -> list[str]:
    return [name for name in RATES_RPS if about(own, name).residency == "unloaded"]


def processes(own: Stack) -> set[str]:
    """The models that have a process, as the machine sees it."""
    (worker,) = own.pids("worker")
    found = set()
    for each in psutil.Process(worker).children():
        try:
            words = each.cmdline()
        except psutil.Error:
            continue
        found |= {word.split()[2].partition("/")[0] for word in words if word.startswith("bunch executor ")}
    return found


def test_a_worker_is_ready_with_nothing_loaded(own: Stack, api: Api) -> None:
    assert processes(own) == set()
    assert set(api.get("/readyz").json["models"]) == {*RATES_RPS, "broken"}
    assert api.get("/readyz?model=half").status == 200
    shown = own.manage("models", "--json")
    assert shown.returncode == 0
    found = json.loads(shown.stdout)
    assert {(row["residency"], row["ready"], row["loads"]) for row in found} == {("unloaded", 0, 0)}
    assert api.get("/internal/health").json["status"] == "healthy"
    assert set(resident(api).values()) == {0.0}


def test_six_models_with_room_for_two_answer_every_request_within_the_budget(own: Stack, api: Api) -> None:
    most, over = [], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            most.append(processes(own))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        took = {name: [] for name in RATES_RPS}
        for name, answer in poisson(api):
            assert answer.status == 200, (name, answer.body, own.last_logs())
            took[name].append(answer.json["latency_ms"] / 1000)
    finally:
        over.set()
        watcher.join()
    elapsed_s = time.monotonic() - began
    assert max(map(len, most)) == ROOM
    found = {name: about(own, name) for name in RATES_RPS}
    loads = {name: row.loads for name, row in found.items()}
    assert min(loads.values()) >= 1
    # A minimum residence, as long as a load: a place is loading for at most half of the time.
    loads_s = [(row.load_ms or 0) / 1000 for row in found.values()]
    load_s = min(loads_s)
    assert sum(loads.values()) <= ROOM * elapsed_s / (2 * load_s) + ROOM
    # The most asked model is not sent away for each of the others.
    assert loads["half"] <= sum(loads.values()) / 3
    assert statistics.median(took["half"]) < statistics.median(took["b"] + took["c"] + took["d"])
    real_s = statistics.mean(took["b"] + took["c"] + took["d"] + took["e"] + took["f"])
    simulated_s = simulated(loads_s)
    # Others may use this machine; the exact comparison is in `tests/benchmarks/residency.py`.
    assert simulated_s / 4 < real_s < simulated_s * 4


def poisson(api: Api) -> Iterator[tuple[str, Answer]]:
    """Independent callers of all models; the answers, with the model of each."""
    began, sent = time.monotonic(), []
    for at, name in sorted((at, name) for name, times in ARRIVALS.items() for at in times):
        time.sleep(max(0.0, began + at - time.monotonic()))
        sent.append((name, api.soon(at, name)))
    for name, answer in sent:
        yield name, answer.result()


def simulated(loads_s: list[float]) -> float:
    """The mean latency of the models that are seldom asked, in virtual time."""
    models = {
        name: OnDemand(
            Scenario(
                arrivals=Recorded(times),
                service=Affine(BATCH_MS / 1000),
                policy=lambda: Adaptive(max_batch_size=64, max_wait_s=0.005),
                duration_s=DURATION_S,
            ),
            {"models": 1.0},
            loads_s,
            unload_s=0.05,
        )
        for name, times in ARRIVALS.items()
    }
    shared = simulate_residency(models, {"models": float(ROOM)})
    assert shared.failed == 0
    took = [each for name in "bcdef" for tier in shared.reports[name].latencies_s for each in tier]
    return statistics.mean(took)


def test_a_deadline_that_cannot_hold_the_load_is_refused_with_the_time_until_it_is_loaded(own: Stack, api: Api) -> None:
    name = wait_until(lambda: unloaded(own), what="a model is unloaded")[0]
    refused = wait_until(lambda: refusal(api.infer(1, name, timeout_ms=50)), what="the worker has told its load time")
    assert refused.error == "MODEL_UNAVAILABLE"
    assert f"{name} is not loaded" in refused.json["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 10
    assert refused.json["retry_after_ms"] > (about(own, name).load_ms or 0)
    # It is loaded for whoever tries again.
    wait_until(lambda: about(own, name).residency == "resident", what="it is loaded without a request")
    assert wait_until(lambda: api.infer(1, name, timeout_ms=500).status == 200, what="the next one is answered")


def resident(api: Api) -> dict[str, float]:
    """`bunch_resident` of each model."""
    lines = [line for line in api.get("/metrics").body.decode().splitlines() if line.startswith("bunch_resident{")]
    return {line.partition('model="')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}


def refusal(answer: Answer) -> Answer | None:
    return answer if answer.status == 503 else None


def test_an_operator_loads_and_unloads_a_model(own: Stack, api: Api) -> None:
    name = wait_until(lambda: unloaded(own), what="a model is unloaded")[0]
    assert api.post(f"/v2/repository/models/{name}/load", {}).status == 200
    assert name in processes(own)
    assert api.get(f"/v2/models/{name}/ready").status == 200
    assert api.post(f"/v2/repository/models/{name}/unload", {}).status == 200
    wait_until(lambda: name not in processes(own), what="its process is gone")
    wait_until(lambda: about(own, name).residency == "unloaded", what="the register says so")
    assert resident(api)[name] == 0.0
    assert api.infer(7, name).json["output"] == 7


def test_a_model_that_does_not_load_is_refused_at_once_until_it_does_and_keeps_no_room(
    own: Stack, api: Api, until: Path
) -> None:
    first = api.soon(1, "broken", timeout_ms=100_000)
    refused = wait_until(lambda: refusal(api.infer(1, "broken", timeout_ms=300)), what="its load has failed")
    assert refused.error == "MODEL_UNAVAILABLE"
    assert "could not be loaded" in refused.json["message"]
    assert "the weights are missing" in (rows(own)["broken"].error or "")
    assert [api.infer(1, name).status for name in "bc"] == [200, 200]
    until.touch()
    # What waits is answered by the next try.
    assert first.result().status == 200
