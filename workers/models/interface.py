"""Checks the methods of a model when it is loaded, rather than at the first request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

PREDICT = "def predict(self, inputs, parameters)"
# The arguments of each method of a class, and what to write.
_METHODS = {
    "load": (1, "def load(self, device)"),
    "predict": (2, PREDICT),
    "prepare": (2, "def prepare(self, inputs, parameters)"),
    "finish": (1, "def finish(self, raw)"),
    "warmup": (0, "def warmup(self)"),
    "cost": (1, "def cost(self, input)"),
    "length": (1, "def length(self, input)"),
}
_FUNCTION = (1, "def batchstring(inputs)")


def what_is_wrong(model: Any) -> str | None:
    """The first method of a class source that cannot be called, and what to write; None: all can."""
    for name, (arguments, wanted) in _METHODS.items():
        method = getattr(model, name, None)
        # The required methods have been checked before.
        if callable(method) and (wrong := _wrong_call(method, arguments)):
            return f"its {name} {wrong}; write {wanted}"
    return None


def what_is_wrong_with_function(function: Callable[..., Any]) -> str | None:
    """The same for a function source."""
    arguments, wanted = _FUNCTION
    wrong = _wrong_call(function, arguments)
    return f"it {wrong}; write {wanted}, and return a list of strings" if wrong else None


def _wrong_call(call: Callable[..., Any], arguments: int) -> str | None:
    # For an object with `__call__`, its method has the signature.
    for each in (call, getattr(type(call), "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            return "is async, but Bunch does not await it (call asyncio.run() inside it)"
        if inspect.isgeneratorfunction(each):
            return "is a generator function; it must return its value"
    try:
        # A decorator's wrapper is checked itself: it is what is called.
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):
        # Compiled code does not reveal its signature.
        return None
    try:
        signature.bind(*range(arguments))
    except TypeError:
        given = "no argument" if not arguments else "1 argument" if arguments == 1 else f"{arguments} arguments"
        return f"takes {signature}, but is called with {given}"
    return None
