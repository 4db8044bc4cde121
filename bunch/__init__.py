"""The interface for authors of models: nothing else of this project is needed, and no base class.

from bunch import InputRejected, InvalidInput, Output, TransientError

Exception
├── TransientError     raise it, or a subclass, for a failure that may pass (ConnectionError and TimeoutError count
│                      as such too); the batch is retried as a whole, after a pause
└── InputRejected      return it as an input's output: the model refuses that input (422)
    └── InvalidInput   the input has the wrong form for this model (400)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["InputRejected", "InvalidInput", "Model", "Output", "TransientError"]


class InputRejected(Exception):
    """A model's refusal of one input. `message` is shown to the caller."""

    def __init__(self, message: str = "the model refused this input") -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(InputRejected):
    """The input has the wrong form for this model."""


class TransientError(Exception):
    """The model is temporarily unable to predict; the inputs are not at fault."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output with `metadata`, which is added to the metadata of the answer; Bunch's own fields take precedence.

    `metadata` is a dict with string keys and JSON values, of at most 16 KiB as JSON.
    """

    value: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """A class source, constructed as `Source(**options)` in the executor's process.

    Optional: `warmup()`, called once after `load`; `version`, a string that is reported to callers unless bunch.toml
    gives one; `cost(input) -> int`, how much of `max_batch_cost` an input takes, for example in tokens; `length(input)
    -> int`, which chooses among `length_buckets`.

    Optional, for inputs that are bytes: `accepts_views = True` takes them as memory that it cannot write to, a
    `memoryview` instead of `bytes` and a read-only array, without a copy of large ones.

    Optional, to overlap with the batches before and after: `prepare(inputs, parameters)` makes what `predict` gets in
    place of the inputs, and `finish(raw)` makes the outputs from what `predict` returns. Each runs in a thread of its
    own. Where `prepare` returns a list, an exception in it is the outcome of its input, which `predict` does not get.

    Optional, with `input_type = "arrow"`: `one_table = True` for one pyarrow table with the rows of all inputs instead
    of a list of tables; then `predict` returns a table, an array or a list with a row for each of its rows.
    """

    def load(self, device: str) -> None:
        """Prepare to predict. `device` is as in bunch.toml; where that says `auto`, it is `cuda` or `cpu`."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Any:
        """Return exactly one output per input, in order: a list, or an array or tensor whose first dimension is the
        batch.

        `parameters[i]` belongs to `inputs[i]`. An input is a JSON value, or with another `input_type` in bunch.toml
        `bytes`, a numpy array or a pyarrow table. An output is any JSON value, bytes, a numpy or torch value, a pyarrow
        table, an `Output`, or an exception instance, which fails that input only. The lists and their contents belong
        to this batch.
        """
