"""A batch through the executor's arithmetic, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from workers.executor.compute import BatchComputer, Computed

Predict = Callable[[list[Any], list[dict[str, Any]]], Any]


class Model:
    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def load(self, device: str) -> None:
        pass


def compute(predict: Predict, *inputs: Any, parameters: list[bytes] | None = None) -> Computed:
    raw = [msgspec.json.encode(each) for each in inputs]
    return BatchComputer(Model(predict)).run(raw, parameters or [b"{}"] * len(raw))
