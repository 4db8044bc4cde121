"""The model of `tests.benchmarks.large`: it looks at each input's length, first and last byte."""

from __future__ import annotations

from typing import Any


class Weigh:
    """Takes no time, so what is left is what it costs to bring its inputs to it."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[bytes], parameters: list[dict[str, Any]]) -> list[list[int]]:
        return [[len(each), each[0], each[-1]] for each in inputs]


class WeighViews(Weigh):
    """The same, of inputs where they lie, as `np.frombuffer` or a decoder of images takes them."""

    accepts_views = True
