"""NVIDIA's binding with GPUs that a file describes: what a test writes there is what the next reading finds.

    {"GPU-a": {"memory": [90, 100], "throttle": 64, "xids": [79], "lost": true, …}, "hang": false}

Each XID of a GPU is reported once; `hanging` is set once a call hangs. `NVML_FAKE` names the file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_ERROR_GPU_IS_LOST = 15
nvmlEventTypeXidCriticalError = 8  # noqa: N816
nvmlClocksThrottleReasonHwSlowdown = 0x08  # noqa: N816
nvmlClocksThrottleReasonSwThermalSlowdown = 0x20  # noqa: N816
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N816
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80  # noqa: N816

hanging: list[bool] = []
_told: set[tuple[str, int]] = set()
_heard: list[str] = []


class NVMLError(Exception):
    """As the binding's own: `value` is NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def _gpus() -> dict[str, Any]:
    gpus: dict[str, Any] = json.loads(Path(os.environ["NVML_FAKE"]).read_text())
    while gpus.pop("hang", False):
        hanging[:] = [True]
        time.sleep(0.02)
        gpus = json.loads(Path(os.environ["NVML_FAKE"]).read_text())
    return gpus


def _gpu(handle: str) -> dict[str, Any]:
    gpu: dict[str, Any] = _gpus()[handle]
    if gpu.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return gpu


def nvmlInit() -> None:  # noqa: N802
    _gpus()


def nvmlShutdown() -> None:  # noqa: N802
    _heard.clear()


def nvmlDeviceGetHandleByIndex(index: int) -> str:  # noqa: N802
    return list(_gpus())[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:  # noqa: N802
    if uuid not in _gpus():
        raise NVMLError(6)
    return uuid


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: str) -> str:  # noqa: N802
    return str(_gpu(handle)["of"])


def nvmlDeviceGetUUID(handle: str) -> str:  # noqa: N802
    _gpu(handle)
    return handle


def nvmlDeviceGetUtilizationRates(handle: str) -> SimpleNamespace:  # noqa: N802
    if "busy" not in (gpu := _gpu(handle)):
        raise NVMLError(3)
    return SimpleNamespace(gpu=gpu["busy"])


def nvmlDeviceGetMemoryInfo(handle: str) -> SimpleNamespace:  # noqa: N802
    used, total = _gpu(handle).get("memory", [1, 100])
    return SimpleNamespace(used=used, total=total)


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> int:  # noqa: N802
    return int(_gpu(handle).get("temperature", 40))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> int:  # noqa: N802
    return int(_gpu(handle).get("throttle", 0))


def nvmlDeviceGetTotalEccErrors(handle: str, kind: int, counter: int) -> int:  # noqa: N802
    return int(_gpu(handle).get("ecc", 0))


def nvmlEventSetCreate() -> str:  # noqa: N802
    return "events"


def nvmlDeviceRegisterEvents(handle: str, kinds: int, events: str) -> None:  # noqa: N802
    _heard.append(handle)


def nvmlEventSetWait_v2(events: str, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
    for handle, gpu in _gpus().items():
        for xid in gpu.get("xids", []):
            if handle in _heard and (handle, xid) not in _told:
                _told.add((handle, xid))
                return SimpleNamespace(device=handle, eventType=8, eventData=xid)
    raise NVMLError(10)
