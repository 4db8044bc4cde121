"""A model that does what each input tells it, for tests that control a whole stack from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bunch import InputRejected, Output, TransientError

_LOOK_EVERY_S = 0.02


class Tensorlike:
    """Has a length and a shape, and is not a list: like a tensor."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self.shape = (len(values),)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def tolist(self) -> list[Any]:
        return self._values


class Moody:
    """Echoes `{"echo": input, "batch": inputs in the batch}`, unless an input is an object with one of these names.

    | name     | value    | what it does                                                    |
    |----------|----------|-----------------------------------------------------------------|
    | `reject` | a text   | this input is refused                                           |
    | `fail`   | a text   | this input's output is an exception                             |
    | `raise`  | a text   | `predict` raises                                                |
    | `return` | a shape  | the whole batch comes back in that shape: see `SHAPES`          |
    | `sleep`  | seconds  | the whole batch takes so much longer                            |
    | `hold`   | a path   | the whole batch waits until there is a file                     |
    | `nest`   | a number | this input's output is a list in a list in a list, so many deep |
    | `busy`   | anything | `predict` raises a transient error that quotes all of its inputs  |
    | `room`   | a number | there is no memory for more inputs than that                    |
    """

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Any:
        shape = None
        outputs: list[Any] = []
        for value in inputs:
            wish = value if isinstance(value, dict) else {}
            shape = wish.get("return", shape)
            if len(inputs) > wish.get("room", len(inputs)):
                raise MemoryError
            if "raise" in wish:
                raise ValueError(wish["raise"])
            if "busy" in wish:
                raise TransientError(f"cannot take {inputs} now")
            time.sleep(wish.get("sleep", 0))
            if "hold" in wish:
                _hold(Path(wish["hold"]))
            outputs.append(_output(value, wish, len(inputs)))
        return SHAPES[shape](outputs) if shape else outputs


class Counting:
    """Echoes `[input, number of inputs so far]`; an object with `sleep` makes the batch take that long.

    With `tokens`, that is in the metadata of the output, together with names that a model may not set.
    """

    def load(self, device: str) -> None:
        self._seen = 0

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        outputs: list[Any] = []
        for value in inputs:
            time.sleep(value.get("sleep", 0) if isinstance(value, dict) else 0)
            if isinstance(value, dict) and "hold" in value:
                _hold(Path(value["hold"]))
            self._seen += 1
            output: Any = [value, self._seen]
            if isinstance(value, dict) and "tokens" in value:
                output = Output(output, {"tokens_used": value["tokens"], "cached": "mine", "batch_id": "mine"})
            outputs.append(output)
        return outputs


def _output(value: Any, wish: dict[str, Any], count: int) -> Any:
    if "reject" in wish:
        return InputRejected(wish["reject"])
    if "fail" in wish:
        return RuntimeError(wish["fail"])
    if "nest" in wish:
        nested: list[Any] = []
        for _ in range(wish["nest"]):
            nested = [nested]
        return nested
    return {"echo": value, "batch": count}


def _hold(path: Path) -> None:
    # The end of a test removes the folder.
    while path.parent.exists() and not path.exists():
        time.sleep(_LOOK_EVERY_S)


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "fewer": lambda outputs: outputs[:-1],
    "more": lambda outputs: [*outputs, outputs[-1]],
    "none": lambda outputs: None,
    "single": lambda outputs: outputs[0],
    "dict": lambda outputs: dict(enumerate(outputs)),
    "generator": lambda outputs: (each for each in outputs),
    "tuple": tuple,
    "tensor": lambda outputs: Tensorlike(outputs[:-1]),
    "array": Tensorlike,
}
# Return values that do not define which output belongs to which input.
BROKEN_SHAPES = tuple(shape for shape in SHAPES if shape != "array")


class Wordy:
    """Returns a text of the length that the input gives."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[int], parameters: list[dict[str, Any]]) -> list[Any]:
        return ["x" * each for each in inputs]
