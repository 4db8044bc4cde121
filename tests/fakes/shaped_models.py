"""Models that tell which shapes they have seen, for tests of `batch_sizes`."""

from __future__ import annotations

import time
from typing import Any


class Shaped:
    """Each output is `[input, the sizes of all calls of this process so far]`. A new size takes `new_size_s` more.

    The input "refused" makes a call fail.
    """

    def __init__(self, new_size_s: float = 0.0) -> None:
        self._new_size_s = new_size_s
        self._sizes: list[int] = []

    def load(self, device: str) -> None:
        pass

    def length(self, input: Any) -> int:
        return len(str(input))

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if len(inputs) not in self._sizes:
            time.sleep(self._new_size_s)
        self._sizes.append(len(inputs))
        if "refused" in inputs:
            raise ValueError("not this one")
        return [[each, list(self._sizes)] for each in inputs]
