"""The GPU of each executor, and the meaning of `auto`, on machines that are not at hand."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.process.devices import (
    Machine,
    Placement,
    describe,
    driver_gpus,
    executor_count,
    file_gpus,
    gpu_of,
    place,
    placement,
    sharing,
)
from config.schema import Devices, ModelSettings

GPUS = ("GPU-aa", "GPU-bb", "GPU-cc")


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_each_instance_gets_a_gpu_of_its_own(device: str) -> None:
    placed = [place(device, n, Machine(GPUS)) for n in range(3)]
    assert placed == [Placement("cuda", gpu) for gpu in GPUS]


@given(st.integers(0, 50), st.integers(1, 9))
def test_with_more_instances_than_gpus_they_are_shared_evenly(instances: int, gpus: int) -> None:
    machine = Machine(tuple(f"GPU-{n}" for n in range(gpus)))
    placed = [place("auto", n, machine).visible for n in range(instances)]
    counts = [placed.count(gpu) for gpu in machine.gpus]
    assert max(counts) - min(counts) <= 1
    assert len(sharing({f"m/{n}": Placement("cuda", gpu) for n, gpu in enumerate(placed)})) == max(0, instances - gpus)


def test_who_shares_with_whom_is_said() -> None:
    placed = {f"m/{n}": place("cuda", n, Machine(GPUS[:2])) for n in range(3)}
    (line,) = sharing(placed)
    assert line.startswith("m/2 shares cuda (GPU-aa) with m/0")
    assert sharing({f"m/{n}": place("cpu", n, Machine(GPUS)) for n in range(3)}) == []


@pytest.mark.parametrize("machine", [Machine(why="no driver"), Machine(GPUS, why="torch is a CPU build")])
def test_without_a_gpu_that_can_be_used_auto_is_the_cpu(machine: Machine) -> None:
    assert place("auto", 1, machine) == Placement("cpu")
    assert machine.auto == "cpu"


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "mps"])
def test_what_is_named_is_handed_on_as_it_is(device: str) -> None:
    assert place(device, 2, Machine(GPUS)) == Placement(device)


def test_cuda_is_taken_at_its_word_where_no_driver_can_be_asked() -> None:
    assert place("cuda", 0, Machine(why="no driver")) == Placement("cuda")


@pytest.mark.parametrize(
    ("wanted", "gpus"),
    [
        (None, GPUS),
        ("2,0", ("2", "0")),
        (" 1 ", ("1",)),
        ("GPU-bb,MIG-12", ("GPU-bb", "MIG-12")),
        # As CUDA reads it: what stands behind the first that is none does not count.
        ("1,7,0", ("1",)),
        ("0,-1,1", ("0",)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_what_this_process_may_see_is_all_that_its_executors_get(wanted: str | None, gpus: tuple[str, ...]) -> None:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    machine = describe(environ, GPUS, "2.13.0")
    assert machine.gpus == gpus
    assert machine.auto == ("cuda" if gpus else "cpu")
    assert bool(machine.why) is not bool(gpus)


def test_a_variable_alone_makes_no_gpu() -> None:
    assert describe({"CUDA_VISIBLE_DEVICES": "0"}, (), "").auto == "cpu"


@pytest.mark.parametrize(
    ("torch", "auto"), [("2.13.0+cpu", "cpu"), ("2.13.0", "cuda"), ("2.13.0+cu130", "cuda"), ("", "cuda")]
)
def test_a_torch_that_knows_no_cuda_makes_auto_the_cpu(torch: str, auto: str) -> None:
    machine = describe({}, GPUS, torch)
    assert machine.auto == auto
    # Whoever names it does not use torch.
    assert place("cuda", 1, machine) == Placement("cuda", "GPU-bb")


def placed(devices: Devices, machine: Machine, pool: Devices = None, **model: Any) -> list[Placement]:
    settings = ModelSettings(name="m", source="a:B", devices=devices, **model)
    return [placement(settings, pool, n, machine) for n in range(executor_count(settings, pool, machine))]


UNKNOWN = Machine(why="no driver")


@pytest.mark.parametrize(
    ("devices", "machine", "expected"),
    [
        (("cuda:0", "cuda:1"), UNKNOWN, [Placement("cuda", "0"), Placement("cuda", "1")]),
        (("GPU-x", "MIG-y"), UNKNOWN, [Placement("cuda", "GPU-x"), Placement("cuda", "MIG-y")]),
        (("cpu",), UNKNOWN, [Placement("cpu", "")]),
        (("cuda:1", "cuda:1"), Machine(GPUS), [Placement("cuda", "1")] * 2),
        (("GPU-cc", "MIG-y"), Machine(GPUS), [Placement("cuda", "GPU-cc"), Placement("cuda", "MIG-y")]),
        (("cuda:1",), Machine(("5", "3"), narrowed=True), [Placement("cuda", "3")]),
        (("cuda:2",), Machine(("GPU-a", "MIG-b", "MIG-c")), [Placement("cuda", "MIG-c")]),
        ("all", Machine(GPUS), [Placement("cuda", gpu) for gpu in GPUS]),
    ],
)
def test_each_device_of_the_list_has_an_executor(devices: Devices, machine: Machine, expected: list[Placement]) -> None:
    assert placed(devices, machine) == expected


@pytest.mark.parametrize(
    ("devices", "machine", "said"),
    [
        ("all", UNKNOWN, "no driver"),
        (("cuda:3",), Machine(GPUS), "no cuda:3"),
        (("GPU-zz",), Machine(GPUS), "GPU-zz is not on this machine, which has GPU-aa, GPU-bb, GPU-cc"),
    ],
)
def test_a_device_that_is_not_there_is_said_to_be_missing(devices: Devices, machine: Machine, said: str) -> None:
    (only,) = placed(devices, machine)
    assert said in only.problem


def test_a_pools_devices_are_for_models_that_name_none() -> None:
    pool = ("cuda:2", "cuda:3")
    assert [each.visible for each in placed(None, UNKNOWN, pool)] == ["2", "3"]
    assert [each.visible for each in placed(("cuda:0",), UNKNOWN, pool)] == ["0"]
    assert placed(None, UNKNOWN, pool, device="cpu") == [Placement("cpu")]
    assert [each.visible for each in placed(None, UNKNOWN, pool, instances=3)] == ["2", "3"]


def test_a_process_sees_its_device_before_it_starts_and_indices_count_as_the_driver_counts() -> None:
    assert Placement("cuda", "1").environment == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert Placement("cuda", "GPU-aa").environment == {"CUDA_VISIBLE_DEVICES": "GPU-aa"}
    assert Placement("cpu", "").environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert Placement("cuda").environment == {}


class Nvml:
    """A stand-in for NVIDIA's library, with so many GPUs of which one does not say its name."""

    def __init__(self, count: int, mute: int = -1, broken: bool = False) -> None:
        self.count = count
        self.mute = mute
        self.broken = broken
        self.open = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.open += not self.broken
        return 9 if self.broken else 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:  # noqa: N802
        if handle.value - 1 == self.mute:
            return 3
        text.value = f"GPU-{handle.value - 1}".encode()
        return 0


class DividedNvml(Nvml):
    """The first GPU is divided into two MIG instances, of up to seven."""

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        current._obj.value = int(handle.value == 1)
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, most: Any) -> int:  # noqa: N802
        most._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Any, index: int, instance: Any) -> int:  # noqa: N802
        instance._obj.value = 100 + index
        return 0 if index in {1, 4} else 6

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:  # noqa: N802
        if handle.value < 100:
            return super().nvmlDeviceGetUUID(handle, text, size)
        text.value = f"MIG-{handle.value - 100}".encode()
        return 0


@pytest.mark.parametrize(
    ("nvml", "found"),
    [
        (DividedNvml(2), ("MIG-1", "MIG-4", "GPU-1")),
        (Nvml(2), ("GPU-0", "GPU-1")),
        (Nvml(3, mute=1), ("GPU-0", "GPU-2")),
        (Nvml(0), ()),
        (Nvml(2, broken=True), ()),
    ],
)
def test_the_driver_is_asked_and_let_go(monkeypatch: pytest.MonkeyPatch, nvml: Nvml, found: tuple[str, ...]) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert driver_gpus() == found
    assert nvml.open == 0


def test_a_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_gpus() == ()


def test_device_files_are_counted_where_the_library_is_missing(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia0-caps"):
        (tmp_path / name).touch()
    assert file_gpus(tmp_path) == ("0", "1")


@pytest.mark.parametrize("narrowed", [False, True])
def test_a_gpu_has_one_name_however_the_file_names_it(narrowed: bool) -> None:
    machine = Machine(("GPU-aa-1", "GPU-bb-2"), narrowed=narrowed)

    def name(devices: Devices, device: str = "auto") -> str:
        model = ModelSettings(name="m", source="x:y", device=device, devices=devices)
        return gpu_of(placement(model, None, 1, machine), machine)

    named = (name(None), name(None, "cuda"), name(None, "cuda:1"), name(("cuda:1",)), name(("GPU-bb",)), name("all"))
    assert set(named) == {"GPU-bb-2"}
    assert name(("cpu",)) == name(None, "cpu") == "cpu"
    # Numbers that are the starter's choice are not counted among themselves.
    chosen = Machine(("3", "1"), narrowed=True)
    model = ModelSettings(name="m", source="x:y")
    assert [gpu_of(placement(model, None, each, chosen), chosen) for each in (0, 1)] == ["3", "1"]
    assert gpu_of(placement(model, None, 0, Machine()), Machine()) == "cpu"
