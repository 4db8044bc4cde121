"""A GPU's memory: the share that one executor may use, and what torch keeps of it without need."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

from config.settings import ModelSettings

logger = logging.getLogger(__name__)


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


def _cuda() -> Any:
    """`torch.cuda`, or None. By its name: only models decide whether to import torch."""
    return getattr(sys.modules.get("torch"), "cuda", None)
