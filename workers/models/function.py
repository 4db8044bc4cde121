"""A plain function as a model: `batchstring(inputs: list[str]) -> list[str]`, used unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunch import InvalidInput


class FunctionModel:
    """Hands each batch to the function; it is never called with anything but strings, nor with none."""

    def __init__(self, function: Callable[[list[str]], list[str]]) -> None:
        self._function = function

    def load(self, device: str) -> None:
        """Nothing to do: importing the function loaded whatever it needs."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return self._function(inputs)

    @staticmethod
    def refuse(value: object) -> InvalidInput | None:
        """Asked for each input on its own, so that a neighbour's wrong type costs the others nothing."""
        if isinstance(value, str):
            return None
        return InvalidInput(f"this model takes strings; the input is {_json_kind(value)}")


def _json_kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), "null")
