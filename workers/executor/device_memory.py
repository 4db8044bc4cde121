"""A GPU's memory: the share that one executor may use, and what torch keeps of it without need."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
from typing import Any

from config.settings import ModelSettings

logger = logging.getLogger(__name__)

# `cudaHostRegisterPortable`: for every context of this process.
_PORTABLE = 1


def limit_device_memory(model: ModelSettings) -> None:
    """Apply `memory_fraction` where torch is loaded and has CUDA: beyond it, torch raises its out-of-memory error.

    Other libraries, and memory that does not come from torch's allocator, are not limited.
    """
    if model.memory_fraction is None:
        return
    cuda = _cuda()
    if cuda is None or not cuda.is_available():
        return
    # A process sees its own GPU alone; with `device = "cuda:1"` it sees all, and uses that one.
    _, _, index = model.device.partition("cuda:")
    cuda.set_per_process_memory_fraction(model.memory_fraction, int(index) if index.isdigit() else 0)
    logger.debug("%s may use %.0f %% of its GPU's memory", model.name, model.memory_fraction * 100)


def free_unused() -> bool:
    """Give the memory that torch has reserved and does not use back to the GPU. It may be in pieces, each too small.

    Returns:
        False where torch has not used a GPU, or cannot any more: then nothing has changed.
    """
    cuda = _cuda()
    if cuda is None or not cuda.is_initialized():
        return False
    # A cycle of objects keeps its tensors until the collector comes by.
    gc.collect()
    try:
        cuda.empty_cache()
    except RuntimeError as error:
        logger.warning("could not free unused memory of the GPU: %s", error)
        return False
    return True


def pin(mapping: Any) -> bool:
    """Lock shared memory for a GPU, where torch has used one: copies from it are direct, and may run beside Python.

    `mapping` is a buffer that can be written to. Returns whether `unpin` must be called before it ends.
    """
    cuda = _cuda()
    if cuda is None or not cuda.is_initialized():
        return False
    address, size = _extent(mapping)
    try:
        failed = int(cuda.cudart().cudaHostRegister(address, size, _PORTABLE))
    except Exception as error:  # noqa: BLE001 - it would be faster, no more
        failed, why = -1, str(error)
    else:
        why = f"CUDA error {failed}"
    if failed:
        logger.info("inputs in shared memory are not pinned: %s", why)
    return not failed


def unpin(mapping: Any) -> None:
    """Undo `pin`."""
    with contextlib.suppress(Exception):
        _cuda().cudart().cudaHostUnregister(_extent(mapping)[0])


def _extent(mapping: Any) -> tuple[int, int]:
    size = len(mapping)
    return ctypes.addressof((ctypes.c_ubyte * size).from_buffer(mapping)), size


def _cuda() -> Any:
    """`torch.cuda`, or None. By its name: only models decide whether to import torch."""
    return getattr(sys.modules.get("torch"), "cuda", None)
