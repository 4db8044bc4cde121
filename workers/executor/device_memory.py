"""The share of a GPU's memory that one executor may use."""

from __future__ import annotations

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
    # By its name: only models decide whether to import torch.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        return
    # A process sees its own GPU alone; with `device = "cuda:1"` it sees all, and uses that one.
    _, _, index = model.device.partition("cuda:")
    cuda.set_per_process_memory_fraction(model.memory_fraction, int(index) if index.isdigit() else 0)
    logger.debug("%s may use %.0f %% of its GPU's memory", model.name, model.memory_fraction * 100)
