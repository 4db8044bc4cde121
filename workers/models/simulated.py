"""A stand-in for a GPU: it takes as long as a GPU would, and returns its inputs."""

from __future__ import annotations

import random
import time
from typing import Any


class Simulated:
    """A batch of n takes `batch_ms` + `item_ms`·n, ± `jitter`.

    Args:
        jitter: 0.1 spreads each batch evenly over ±10 % of its time.
        load_ms: how long `load` takes.
        seed: makes the jitter repeatable.
    """

    def __init__(
        self,
        batch_ms: float = 20.0,
        item_ms: float = 0.5,
        jitter: float = 0.0,
        load_ms: float = 0.0,
        seed: int | None = None,
    ) -> None:
        for name, value in (("batch_ms", batch_ms), ("item_ms", item_ms), ("load_ms", load_ms)):
            if value < 0:
                raise ValueError(f"{name} must not be below 0, is {value}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, is {jitter}")
        self._batch_s = batch_ms / 1000
        self._item_s = item_ms / 1000
        self._jitter = jitter
        self._load_s = load_ms / 1000
        self._random = random.Random(seed)

    def load(self, device: str) -> None:
        time.sleep(self._load_s)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        time.sleep(self.duration_s(len(inputs)))
        return inputs

    def duration_s(self, count: int) -> float:
        """The time of the next batch of `count`."""
        planned = self._batch_s + self._item_s * count
        return planned * (1 + self._random.uniform(-self._jitter, self._jitter)) if self._jitter else planned
