"""The smallest model: it returns its inputs. It is used to measure everything around a model."""

from __future__ import annotations

from typing import Any


class Echo:
    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs
