"""The health of GPUs: what a reading means, what a worker does about it, and a driver that hangs; with a fake NVML."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from config.process.devices import Placement
from config.settings import ModelSettings
from tests.waiting import wait_until
from workers.health.nvml import NvmlDriver
from workers.health.reactions import WorkerReactions
from workers.health.verdict import Health, Reading, Verdict, judge
from workers.health.watch import SILENT_S, HealthWatch

FAKE = Path(__file__).parent.parent / "fakes" / "driver" / "pynvml.py"


class Machine:
    """The GPUs of a fake driver, and a worker's reactions to them."""

    def __init__(self, file: Path, nvml: ModuleType) -> None:
        self._file = file
        self.nvml = nvml
        self.names = frozenset({"GPU-a"})
        self.full: list[frozenset[str]] = []
        self.replaced: list[tuple[frozenset[str], str]] = []
        self.offline: list[str] = []
        self.now = 100.0
        self.watch = HealthWatch(self, lambda: "w", self.open, 0.9, lambda: self.now)
        self.set()

    def set(self, hang: bool = False, **gpus: dict[str, Any]) -> None:
        text = json.dumps({"GPU-a": {"busy": 50}, "GPU-b": {}, **gpus, **({"hang": True} if hang else {})})
        self._file.with_suffix(".new").write_text(text)
        self._file.with_suffix(".new").replace(self._file)

    def open(self) -> NvmlDriver:
        return NvmlDriver(self.nvml)

    def look(self, driver: NvmlDriver, a: dict[str, Any]) -> Health:
        self.set(**{"GPU-a": a})
        self.watch.look(driver)
        return self.watch.state().health

    def devices(self) -> frozenset[str]:
        return self.names

    def memory_is_full(self, names: frozenset[str]) -> None:
        self.full.append(names)

    def replace(self, names: frozenset[str], reason: str) -> None:
        self.replaced.append((names, reason))

    def go_offline(self, reason: str) -> None:
        self.offline.append(reason)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("NVML_FAKE", str(tmp_path / "gpus.json"))
    spec = importlib.util.spec_from_file_location("fake_nvml", FAKE)
    assert spec is not None
    assert spec.loader is not None
    nvml = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nvml)
    return Machine(tmp_path / "gpus.json", nvml)


def test_a_reading_has_what_the_driver_tells_and_nothing_else(machine: Machine) -> None:
    machine.set(**{"GPU-a": {"busy": 37, "memory": [30, 80], "temperature": 61, "ecc": 2}})
    machine.names = frozenset({"0", "GPU-a", "GPU-b", "GPU-unknown"})
    first, second = machine.open().read(machine.names)
    expected = Reading("GPU-a", frozenset({"0", "GPU-a"}), 0.37, 30, 80, 61, "", 2)
    assert expected in {first, second}
    # It does not say how busy it is.
    assert {first.utilization, second.utilization} == {0.37, None}


def test_a_mig_instance_has_its_own_memory_and_the_errors_of_its_gpu(machine: Machine) -> None:
    machine.set(**{"MIG-x": {"of": "GPU-b", "memory": [5, 10]}, "GPU-b": {"xids": [79], "temperature": 90}})
    (reading,) = machine.open().read({"MIG-x"})
    assert (reading.device, reading.memory_share, reading.temperature_c, reading.xids) == ("MIG-x", 0.5, 90, (79,))


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 95])
def test_an_error_of_the_hardware_ends_the_worker_once(machine: Machine, xid: int) -> None:
    driver = machine.open()
    assert machine.look(driver, {"xids": [xid]}) is Health.OFFLINE
    assert machine.look(driver, {}) is Health.OFFLINE
    assert machine.offline == [f"GPU GPU-a has failed: XID {xid}"]
    assert machine.replaced == []


def test_a_gpu_that_is_gone_ends_the_worker(machine: Machine) -> None:
    driver = machine.open()
    machine.watch.look(driver)
    assert machine.look(driver, {"lost": True, "xids": [79]}) is Health.OFFLINE
    assert len(machine.offline) == 1


@pytest.mark.parametrize("xid", [13, 31, 43])
def test_an_error_of_an_application_replaces_its_processes(machine: Machine, xid: int) -> None:
    assert machine.look(machine.open(), {"xids": [xid]}) is Health.HEALTHY
    assert machine.replaced == [(frozenset({"GPU-a"}), f"GPU GPU-a reported XID {xid}")]
    assert machine.offline == []


@pytest.mark.parametrize("xid", [63, 94])
def test_damaged_memory_that_other_processes_do_not_feel_leaves_the_worker_degraded_for_good(
    machine: Machine, xid: int
) -> None:
    driver = machine.open()
    assert machine.look(driver, {"xids": [xid]}) is Health.DEGRADED
    assert machine.look(driver, {}) is Health.DEGRADED
    assert machine.watch.state().reasons == (f"GPU GPU-a has damaged memory, and needs a reset: XID {xid}",)
    assert (machine.replaced, machine.offline) == ([], [])


# 45 is what the end of a killed process reports.
@pytest.mark.parametrize("xid", [8, 32, 45, 68, 109])
def test_other_errors_are_counted_and_nothing_else(machine: Machine, xid: int) -> None:
    assert machine.look(machine.open(), {"xids": [xid]}) is Health.HEALTHY
    assert (machine.replaced, machine.offline) == ([], [])


@pytest.mark.parametrize(
    ("throttle", "health"), [(0x40, "degraded"), (0x20, "degraded"), (0x04, "healthy"), (0, "healthy")]
)
def test_a_gpu_that_is_too_hot_is_degraded_and_one_at_its_power_cap_is_not(
    machine: Machine, throttle: int, health: str
) -> None:
    driver = machine.open()
    assert machine.look(driver, {"throttle": throttle}).value == health
    assert machine.look(driver, {"throttle": 0}) is Health.HEALTHY


def test_memory_that_is_nearly_full_stays_so_until_it_is_well_below(machine: Machine) -> None:
    driver = machine.open()
    seen = [machine.look(driver, {"memory": [used, 100]}) for used in (90, 95, 88, 84)]
    assert seen == [Health.HEALTHY, Health.DEGRADED, Health.DEGRADED, Health.HEALTHY]
    assert machine.full == [frozenset(), frozenset({"GPU-a"}), frozenset({"GPU-a"}), frozenset()]


def test_at_a_limit_of_all_memory_no_memory_is_full() -> None:
    full = Reading("GPU-a", frozenset({"0"}), memory_used=100, memory_total=100)
    assert judge([full], Verdict(), 1.0).health is Health.HEALTHY


def test_memory_errors_count_from_when_the_worker_started(machine: Machine) -> None:
    driver = machine.open()
    assert machine.look(driver, {"ecc": 7}) is Health.HEALTHY
    assert machine.look(driver, {"ecc": 8}) is Health.DEGRADED


def test_a_driver_that_hangs_keeps_nobody_and_shows_after_a_while(machine: Machine) -> None:
    machine.watch.start()
    wait_until(lambda: bool(machine.watch.state().readings), what="a reading")
    machine.set(hang=True)
    wait_until(lambda: machine.nvml.hanging, what="it hangs")
    state = _at_once(machine.watch.state)
    assert state.health is Health.HEALTHY
    machine.now += SILENT_S
    assert _at_once(machine.watch.state).health is Health.DEGRADED
    assert _at_once(machine.watch.state).readings == ()
    machine.set()
    wait_until(lambda: machine.watch.state().health is Health.HEALTHY, what="it answers again")
    machine.watch.stop()


def _at_once(call: Callable[[], Any]) -> Any:
    """The result of a call that must not block, from a thread that may be left behind."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(5)
    return found[0]


def test_without_devices_the_driver_is_not_opened(machine: Machine) -> None:
    opened: list[bool] = []
    machine.names = frozenset()
    watch = HealthWatch(machine, lambda: "w", lambda: opened.append(True), 0.9)
    watch._run()
    assert opened == []


class Executor:
    """An executor on a GPU, as far as reactions know it."""

    def __init__(self, name: str, visible: str) -> None:
        self.name = name
        self.placement = Placement("cuda", visible)
        self.restarts = 0
        self.condemned: list[str] = []

    def condemn(self, reason: str) -> None:
        self.condemned.append(reason)


@pytest.fixture
def placed() -> tuple[WorkerReactions, list[Executor], list[Any]]:
    executors = [Executor("m/0", "GPU-a"), Executor("m/1", "GPU-b")]
    loops = [SimpleNamespace(state=SimpleNamespace(pressed_size=None)) for _ in executors]
    model = ModelSettings(name="m", source="a:B", max_batch_size=9)
    places: Any = [(model, executor, loop) for executor, loop in zip(executors, loops, strict=True)]
    return WorkerReactions(places, lambda reason: None), executors, loops


def test_processes_on_that_gpu_are_replaced_unless_they_have_been(
    placed: tuple[WorkerReactions, list[Executor], list[Any]],
) -> None:
    reactions, (one, two), _ = placed
    for _ in range(2):
        assert reactions.devices() == {"GPU-a", "GPU-b"}
    reactions.replace(frozenset({"GPU-a"}), "XID 31")
    assert (one.condemned, two.condemned) == (["XID 31"], [])
    # The worker noticed the next one by itself, before the driver told.
    one.restarts = 1
    reactions.devices()
    reactions.replace(frozenset({"GPU-a"}), "XID 31")
    assert one.condemned == ["XID 31"]
    reactions.devices()
    reactions.replace(frozenset({"GPU-a"}), "XID 13")
    assert one.condemned == ["XID 31", "XID 13"]


def test_the_neighbours_of_a_process_that_was_replaced_for_the_error_are_left_alone(
    placed: tuple[WorkerReactions, list[Executor], list[Any]],
) -> None:
    reactions, executors, _ = placed
    for each in executors:
        each.placement = Placement("cuda", "GPU-a")
    reactions.devices()
    executors[1].restarts = 1
    reactions.devices()
    reactions.replace(frozenset({"GPU-a"}), "XID 31")
    assert [each.condemned for each in executors] == [[], []]
    reactions.devices()
    reactions.replace(frozenset({"GPU-a"}), "XID 31")
    assert [each.condemned for each in executors] == [["XID 31"], ["XID 31"]]


def test_full_memory_halves_the_batches_of_that_gpu(
    placed: tuple[WorkerReactions, list[Executor], list[Any]],
) -> None:
    reactions, _, loops = placed
    reactions.memory_is_full(frozenset({"GPU-b"}))
    assert [each.state.pressed_size for each in loops] == [None, 4]
    reactions.memory_is_full(frozenset())
    assert [each.state.pressed_size for each in loops] == [None, None]
