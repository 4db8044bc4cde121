"""A plain function as a model: `batchstring(inputs: list[str]) -> list[str]`, used unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunch import InvalidInput


class FunctionModel:
    """Passes each batch to the function, which is never called with anything but strings, nor with an empty list."""

    def __init__(self, function: Callable[[list[str]], list[str]]) -> None:
        self._function = function

    def load(self, device: str) -> None:
        """Do nothing: importing the function has loaded everything it needs."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return self._function(inputs)

    @staticmethod
    def refuse(value: object) -> InvalidInput | None:
        """Called for each input by itself, so that one with a wrong type does not affect its neighbours."""
        if isinstance(value, str):
            return None
        return InvalidInput(f"this model takes strings; the input is {_json_kind(value)}")


def _json_kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), "null")
