"""The GPUs of this machine, and which of them each executor gets.

    driver, CUDA_VISIBLE_DEVICES ──▶ Machine ──place──▶ what `load` is told, what CUDA shows the process

GPUs are found through the driver's own library or, in a container that lacks it, by their device files. Torch is not
asked: importing it takes seconds, and a model need not use it. The GPU that a process sees is set before it starts, so
a model just uses `cuda`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from config.environ import inherited_environment

# The GPUs that CUDA shows to a process, by index or UUID.
VISIBLE = "CUDA_VISIBLE_DEVICES"
_UUID_BYTES = 96


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of a machine, as CUDA_VISIBLE_DEVICES names them. `why` says why `auto` finds none; empty otherwise."""

    gpus: tuple[str, ...] = ()
    why: str = ""

    @property
    def auto(self) -> str:
        return "cpu" if self.why or not self.gpus else "cuda"


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of an executor. `device` is passed to `load`; `visible` is CUDA_VISIBLE_DEVICES, None: as in this
    process.
    """

    device: str
    visible: str | None = None

    def __str__(self) -> str:
        return self.device if self.visible is None else f"{self.device} ({self.visible})"


def place(device: str, instance: int, machine: Machine) -> Placement:
    """Assign GPU i to instance i; with fewer GPUs instances share. A `device` in bunch.toml that names another is
    kept.
    """
    if device == "auto":
        device = machine.auto
    if device != "cuda" or not machine.gpus:
        return Placement(device)
    return Placement(device, machine.gpus[instance % len(machine.gpus)])


def sharing(placed: Mapping[str, Placement]) -> list[str]:
    """One line per executor, by name, that has no GPU of its own."""
    first: dict[str, str] = {}
    lines = []
    for name, placement in placed.items():
        if placement.visible is not None and first.setdefault(placement.visible, name) != name:
            lines.append(f"{name} shares {placement} with {first[placement.visible]}: more executors than GPUs")
    return lines


@cache
def this_machine() -> Machine:
    """This machine's GPUs, found once: a change at run time needs a restart."""
    return describe(inherited_environment(), driver_gpus() or file_gpus(), _torch_version())


def describe(environ: Mapping[str, str], installed: tuple[str, ...], torch: str) -> Machine:
    """The GPUs among `installed` that may be used here.

    Args:
        torch: the version of torch that is installed, or empty.
    """
    if not installed:
        return Machine(why="no NVIDIA driver or no GPU was found")
    gpus = installed
    wanted = environ.get(VISIBLE)
    if wanted is not None:
        gpus = _visible(wanted, len(installed))
        if not gpus:
            return Machine(why=f"{VISIBLE} is {wanted!r}")
    if torch.endswith("+cpu"):
        return Machine(gpus, f"torch {torch} is a build without CUDA")
    return Machine(gpus)


def driver_gpus() -> tuple[str, ...]:
    """The GPUs' UUIDs, from NVML, which opens no CUDA context."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return ()
    except (OSError, AttributeError):
        return ()
    try:
        return tuple(_uuids(nvml))
    finally:
        nvml.nvmlShutdown()


def file_gpus(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs' indices, from `nvidia0`, `nvidia1`, …"""
    count = sum(each.name.removeprefix("nvidia").isdigit() for each in folder.glob("nvidia[0-9]*"))
    return tuple(map(str, range(count)))


def _uuids(nvml: ctypes.CDLL) -> list[str]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(_UUID_BYTES)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        if not nvml.nvmlDeviceGetUUID(handle, text, _UUID_BYTES):
            found.append(text.value.decode())
    return found


def _visible(wanted: str, installed: int) -> tuple[str, ...]:
    """The GPUs that CUDA makes visible: it reads the list up to the first invalid entry."""
    found: list[str] = []
    for entry in map(str.strip, wanted.split(",")):
        known = int(entry) < installed if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))
        if not known:
            break
        found.append(entry)
    return tuple(found)


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
