"""The GPUs of this machine, and which of them each executor gets.

    driver, CUDA_VISIBLE_DEVICES ──▶ Machine ──placement──▶ what `load` is told, what CUDA shows the process
    devices of the model, or of its pool ───────▲

GPUs are found through the driver's own library or, in a container that lacks it, by their device files. Torch is not
asked: importing it takes seconds, and a model need not use it. The GPU that a process sees is set before it starts, so
a model just uses `cuda`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from config.environ import executor_environment
from config.schema import Devices, ModelSettings
from config.secrets.masking import masked_url

# The GPUs that CUDA shows to a process, by index or UUID.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# CUDA would number the fastest first; NVML and nvidia-smi number by the bus.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
DEVICES = '"all", or a list of "cpu", "cuda", "cuda:0", GPU-… and MIG-… (nvidia-smi -L prints the UUIDs)'
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?|(GPU|MIG)-[\w/-]+")
_UUID_BYTES = 96
# NVML_DEVICE_MIG_ENABLE
_MIG_ENABLED = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of a machine, as CUDA_VISIBLE_DEVICES names them. `why` says why `auto` finds none; empty otherwise.
    `narrowed`: whoever started this process has chosen them, in that variable.
    """

    gpus: tuple[str, ...] = ()
    why: str = ""
    narrowed: bool = False

    @property
    def has_other_names(self) -> bool:
        """Return whether a GPU here may be known by another name: an index, or a part of it."""
        return any(not each.startswith("GPU-") for each in self.gpus)

    @property
    def auto(self) -> str:
        return "cpu" if self.why or not self.gpus else "cuda"


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of an executor. `device` is passed to `load`; `visible` is CUDA_VISIBLE_DEVICES, None: as in this
    process. `problem` says why there is no such device; empty otherwise. `source` is the replica of a model that runs
    behind URLs.
    """

    device: str
    visible: str | None = None
    problem: str = ""
    source: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process needs, set before it starts, to see this device alone."""
        if self.visible is None:
            return {}
        return {VISIBLE: self.visible} | (ORDER if self.visible.isdigit() else {})

    def __str__(self) -> str:
        if self.source:
            return masked_url(self.source)
        return f"{self.device} ({self.visible})" if self.visible else self.device


def is_device(name: str) -> bool:
    """Return whether `devices` may have this entry."""
    return _DEVICE.fullmatch(name) is not None


def executor_count(model: ModelSettings, pool: Devices, machine: Machine) -> int:
    """The number of executors of a model in one worker. `pool` are the devices of its pool."""
    if model.is_remote:
        return model.instances * len(model.replicas)
    devices = _devices(model, pool)
    if devices is None:
        return model.instances
    return max(1, len(machine.gpus)) if devices == "all" else len(devices)


def placement(model: ModelSettings, pool: Devices, instance: int, machine: Machine) -> Placement:
    """The device of an executor, or its replica. `pool` are the devices of its model's pool, for a model that names
    none.
    """
    if model.is_remote:
        return Placement("cpu", source=model.replicas[instance % len(model.replicas)])
    devices = _devices(model, pool)
    if devices is None:
        return place(model.device, instance, machine)
    if devices == "all":
        if not machine.gpus:
            return Placement("cuda", None, f'devices = "all": {machine.why or "no GPU was found"}')
        return Placement("cuda", machine.gpus[instance % len(machine.gpus)])
    return _named(devices[instance % len(devices)], instance, machine)


def place(device: str, instance: int, machine: Machine) -> Placement:
    """Assign GPU i to instance i; with fewer GPUs instances share. A `device` in bunch.toml that names another is
    kept.
    """
    if device == "auto":
        device = machine.auto
    if device != "cuda" or not machine.gpus:
        return Placement(device)
    return Placement(device, machine.gpus[instance % len(machine.gpus)])


def _devices(model: ModelSettings, pool: Devices) -> Devices:
    if model.devices is not None:
        return model.devices
    return pool if model.device == "auto" else None


def _named(name: str, instance: int, machine: Machine) -> Placement:
    """A device as it is written, where no driver can be asked; else it must be one of the machine's."""
    if name == "cpu":
        # Nothing is visible to it: some libraries take every GPU that they find.
        return Placement("cpu", "")
    if name == "cuda":
        return place("cuda", instance, machine)
    index = name.removeprefix("cuda:")
    found = ", ".join(machine.gpus)
    if not index.isdigit():
        # A MIG instance, or the GPU of one, need not be among what CUDA would use by itself.
        # CUDA takes the begin of a UUID as well.
        found_it = machine.has_other_names or any(each.startswith(name) for each in machine.gpus)
        known = not machine.gpus or not name.startswith("GPU-") or found_it
        return Placement("cuda", name, "" if known else f"{name} is not on this machine, which has {found}")
    if machine.gpus and int(index) >= len(machine.gpus):
        return Placement("cuda", index, f"there is no {name} on this machine, which has {found}")
    # CUDA's own numbers know neither the choice of whoever started this process, nor more than one MIG instance.
    is_numbered_here = machine.narrowed or any(each.startswith("MIG-") for each in machine.gpus)
    return Placement("cuda", machine.gpus[int(index)] if is_numbered_here and machine.gpus else index)


def gpu_of(placed: Placement, machine: Machine) -> str:
    """The device of an executor under one name, however bunch.toml names it: a GPU of this machine as in `machine`."""
    name, gpus = placed.visible, machine.gpus
    if name is None:
        # `device = "cuda:1"`: among all that its process sees.
        index = placed.device.removeprefix("cuda:")
    elif not name.startswith("GPU-"):
        # `_named` has the number of one that CUDA counts by itself; with a choice of the starter it took the choice.
        index = "" if machine.narrowed else name
    else:
        found = [each for each in gpus if each.startswith(name)]
        return found[0] if len(found) == 1 else name
    if index.isdigit() and int(index) < len(gpus):
        return gpus[int(index)]
    return name or placed.device


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
    """This machine's GPUs, as executors that this process starts see them. Found once: a change needs a restart."""
    return describe(executor_environment(), driver_gpus() or file_gpus(), _torch_version())


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
    why = f"torch {torch} is a build without CUDA" if torch.endswith("+cpu") else ""
    return Machine(gpus, why, narrowed=wanted is not None)


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
        if not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            # A process can use one MIG instance, and nothing else of a GPU that is divided.
            found += [_uuid(nvml, each) for each in _mig_instances(nvml, handle)] or [_uuid(nvml, handle)]
    return [each for each in found if each]


def _mig_instances(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    current, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    # Drivers from before MIG lack the function; GPUs without it answer with an error.
    mode = getattr(nvml, "nvmlDeviceGetMigMode", None)
    if mode is None or mode(gpu, ctypes.byref(current), ctypes.byref(pending)) or current.value != _MIG_ENABLED:
        return
    nvml.nvmlDeviceGetMaxMigDeviceCount(gpu, ctypes.byref(most))
    for index in range(most.value):
        instance = ctypes.c_void_p()
        # Places that are not in use are errors.
        if not nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, ctypes.byref(instance)):
            yield instance


def _uuid(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_UUID_BYTES)
    return "" if nvml.nvmlDeviceGetUUID(handle, text, _UUID_BYTES) else text.value.decode()


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
