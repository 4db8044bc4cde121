"""What the author of a model imports; nothing else of this project is needed, and no base class.

from bunch import InputRejected, InvalidInput, Output, TransientError

Exception
├── TransientError     raise it, or a subclass: what failed may pass the next time (ConnectionError and TimeoutError
│                      are taken so too); the batch is tried again as a whole, after a pause
└── InputRejected      return it as an input's output: the model refuses that input (422)
    └── InvalidInput   the input has the wrong form for this model (400)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["InputRejected", "InvalidInput", "Model", "Output", "TransientError"]


class InputRejected(Exception):
    """A model's refusal of one input. `message` is what the caller reads."""

    def __init__(self, message: str = "the model refused this input") -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(InputRejected):
    """The input is not of the form that this model takes."""


class TransientError(Exception):
    """The model could not do it now; the inputs are not to blame."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output with `metadata`, which is added to the metadata of the answer; Bunch's own names there win.

    `metadata` is a dict with strings as keys, of whatever JSON can say, and of 16 KiB at most.
    """

    value: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """A class source, constructed as `Source(**options)` in the executor's process.

    Optional beside these: `warmup()`, called once after `load`; `version`, a string that callers are told
    unless bunch.toml gives one; `cost(input) -> int`, how much of `max_batch_cost` an input takes (tokens, say).
    """

    def load(self, device: str) -> None:
        """Make ready to predict. `device` as in bunch.toml, `cuda` or `cpu` where that says `auto`."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Any:
        """Exactly one output per input, in order: a list, or an array or tensor whose first dimension is their number.

        `parameters[i]` belongs to `inputs[i]`. An output is whatever JSON can say, a numpy or torch value, an `Output`,
        or an exception instance, which fails that input alone. The lists and what they hold are this batch's own.
        """
