"""NVIDIA's management library, through its own binding (`pip install nvidia-ml-py`), which a worker can do without.

Nothing else here imports `pynvml`. NVML opens no CUDA context and takes no memory of the GPU. A GPU need not support
everything; what it does not is None.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from workers.health.verdict import Reading

logger = logging.getLogger(__name__)

# One reading takes no more of them, so that a storm of errors cannot keep it.
_MAX_EVENTS = 64
_WAIT_MS = 1


@dataclass(slots=True)
class _Gpu:
    """A GPU or MIG instance, and the GPU that it is part of: errors, heat and clocks are known of that alone."""

    uuid: str
    handle: Any
    whole: Any
    whole_uuid: str
    names: set[str] = field(default_factory=set)


class NvmlDriver:
    """`workers.health.watch.Driver` over NVML; used by one thread. Every call may hang with a broken driver."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: dict[str, _Gpu] = {}
        self._unknown: set[str] = set()
        self._events: Any = None
        nvml.nvmlInit()

    def read(self, names: Collection[str]) -> list[Reading]:
        """A reading of each GPU that one of `names` (UUIDs or indices, as in CUDA_VISIBLE_DEVICES) stands for."""
        for name in names:
            self._find(name)
        mine = [gpu for gpu in self._gpus.values() if not gpu.names.isdisjoint(names)]
        xids: dict[str, list[int]] = {}
        for uuid, xid in self._new_xids():
            # A GPU that fell off the bus cannot be asked for its name: then any of them may be meant.
            for gpu in mine:
                if uuid in {gpu.whole_uuid, ""}:
                    xids.setdefault(gpu.uuid, []).append(xid)
        return [self._reading(gpu, tuple(xids.get(gpu.uuid, ()))) for gpu in mine]

    def close(self) -> None:
        """Let go of the library."""
        self._nvml.nvmlShutdown()

    def _find(self, name: str) -> None:
        if name in self._unknown or any(name in gpu.names for gpu in self._gpus.values()):
            return
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else _by_uuid(nvml, name)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle
            gpu = _Gpu(uuid, handle, whole, _text(nvml.nvmlDeviceGetUUID(whole)))
        except nvml.NVMLError as error:
            # Once: a name that the driver does not know is not asked for every second.
            self._unknown.add(name)
            logger.warning("the driver does not know device %s, so its health is not watched: %s", name, error)
            return
        if uuid not in self._gpus:
            self._gpus[uuid] = gpu
            self._listen(gpu)
        self._gpus[uuid].names.add(name)

    def _listen(self, gpu: _Gpu) -> None:
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu.whole, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError as error:
            logger.warning("GPU %s reports no errors (XID) here, only figures: %s", gpu.uuid, error)

    def _new_xids(self) -> Iterator[tuple[str, int]]:
        """The GPU, empty when it is not known, and number of each new error."""
        nvml = self._nvml
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except nvml.NVMLError:
                # Nearly always the end of the wait.
                return
            try:
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:
                uuid = ""
            if event.eventType & nvml.nvmlEventTypeXidCriticalError:
                yield uuid, int(event.eventData)

    def _reading(self, gpu: _Gpu, xids: tuple[int, ...]) -> Reading:
        nvml, lost = self._nvml, False

        def ask(call: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal lost
            try:
                return call(*arguments)
            except nvml.NVMLError as error:
                lost = lost or getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
                return None

        rates = ask(nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
        temperature = ask(nvml.nvmlDeviceGetTemperature, gpu.whole, nvml.NVML_TEMPERATURE_GPU)
        reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu.whole)
        errors = ask(
            nvml.nvmlDeviceGetTotalEccErrors,
            gpu.whole,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        return Reading(
            gpu.uuid,
            frozenset(gpu.names),
            None if rates is None else rates.gpu / 100,
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            temperature,
            self._throttled(reasons or 0),
            errors,
            xids,
            lost,
        )

    def _throttled(self, reasons: int) -> str:
        nvml = self._nvml
        # The power cap is a setting, and idle is none of a fault's.
        thermal = nvml.nvmlClocksThrottleReasonSwThermalSlowdown | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        if reasons & thermal:
            return "it is too hot"
        if reasons & nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown:
            return "its power supply limits it"
        return "its hardware protects itself" if reasons & nvml.nvmlClocksThrottleReasonHwSlowdown else ""


def open_nvml() -> NvmlDriver | None:
    """The driver of this machine; None without the binding, or without a driver that answers."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        logger.info("nvidia-ml-py is not installed, so the health of GPUs is not watched")
        return None
    try:
        return NvmlDriver(nvml)
    except nvml.NVMLError as error:
        logger.info("there is no NVIDIA driver here, so the health of GPUs is not watched: %s", error)
        return None


def _by_uuid(nvml: Any, uuid: str) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(uuid)


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value
