"""Models for the doors of other APIs: their outputs can be computed by hand, and they say what they got."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bunch import InputRejected, Output


class Embedder:
    """The numbers of a text are its length and those of its first letters, 8 in all; of a token array its tokens.

    A text that is the path of a folder holds its batch until there is a file `open` in it.
    """

    tasks = ["embed"]  # noqa: RUF012 - as a model's author would write it
    accepts_tokens = True
    accepts_dimensions = True

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        for folder in [Path(value) for value in inputs if isinstance(value, str) and value.startswith("/")]:
            (folder / "held").touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
        return [self._one(value, given) for value, given in zip(inputs, parameters, strict=True)]

    def _one(self, value: Any, parameters: dict[str, Any]) -> Any:
        if value in {"refuse", "parameters"} if isinstance(value, str) else False:
            return InputRejected("refused, as asked" if value == "refuse" else f"{sorted(parameters)}")
        if value == "nothing":
            return {"no": "vector"}
        numbers = [len(value), *(value if isinstance(value, list) else map(ord, value))]
        vector = [number / 3 for number in (*numbers, *[0] * 8)][: parameters.get("dimensions", 8)]
        return Output(vector, {"tokens_used": len(value)})


class Ranker:
    """The relevance of a text is the share of its letters that the query has."""

    tasks = ("rerank",)

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [self._one(**each) for each in inputs]

    def _one(self, query: str, text: str) -> Any:
        if text == "fail":
            return ValueError("failed, as asked")
        return Output(sum(letter in query for letter in text) / max(1, len(text)), {"tokens_used": 2})


class Classifier:
    """The classes of a text are whether it is long; of a pair, of both together."""

    tasks = ("classify",)

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        lengths = [len(value) if isinstance(value, str) else sum(map(len, value)) for value in inputs]
        return [{"short": 1 / (1 + each), "long": each / (1 + each)} for each in lengths]


class SlowEmbedder(Embedder):
    """One that takes its time, a batch of one at a time."""

    accepts_tokens = False

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        time.sleep(0.3)
        return super().predict(inputs, parameters)


class Everything(Embedder):
    """One model for all doors: embeds texts and ranks pairs, which are together in its batches."""

    tasks = ["embed", "rerank"]  # noqa: RUF012 - as a model's author would write it

    def _one(self, value: Any, parameters: dict[str, Any]) -> Any:
        return Ranker()._one(**value) if isinstance(value, dict) else super()._one(value, parameters)
