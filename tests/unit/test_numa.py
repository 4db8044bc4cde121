"""The CPUs near a GPU, on machines with several nodes that are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.process.numa import cpus_of, near


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two nodes of four CPUs; a GPU on each, and one of which nobody knows where it is."""
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for bus, uuid, node in (
        ("0000:1A:00.0", "GPU-aa", 0),
        ("0000:5E:00.0", "GPU-bb", 1),
        ("0000:B0:00.0", "GPU-cc", -1),
    ):
        gpu = tmp_path / f"proc/driver/nvidia/gpus/{bus.lower()}"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t H\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n")
        place = tmp_path / f"sys/bus/pci/devices/{bus.lower()}"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "cpus"),
    [
        ("0", {0, 1, 4, 5}),
        ("1", {2, 3, 6, 7}),
        ("GPU-bb", {2, 3, 6, 7}),
        ("MIG-GPU-bb/3/0", {2, 3, 6, 7}),
        ("2", set()),
        ("GPU-zz", set()),
        ("", set()),
        (None, set()),
    ],
)
def test_an_executor_stays_near_its_gpu_where_that_is_known(machine: Path, visible: str | None, cpus: set[int]) -> None:
    assert near(visible, machine) == cpus


def test_a_machine_with_one_node_leaves_them_all(machine: Path) -> None:
    (machine / "sys/devices/system/node/node1").rename(machine / "other")
    assert near("0", machine) == frozenset()


def test_lists_of_cpus_are_read() -> None:
    assert cpus_of("0-2,7,9-9\n") == {0, 1, 2, 7, 9}
    assert cpus_of("") == frozenset()
