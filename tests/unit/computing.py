"""Computes a batch with the executor's code, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from batching.request import Done, Ok, Work
from workers.executor.compute import BatchComputer

Predict = Callable[[list[Any], list[dict[str, Any]]], Any]


class Model:
    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def load(self, device: str) -> None:
        pass


def work(*raw: bytes, parameters: Sequence[bytes] = (), **about: Any) -> Work:
    """A batch of JSON inputs, each with parameters or all without."""
    return Work("b", list(raw), list(parameters) or [b"{}"] * len(raw), **about)


def run(computer: BatchComputer, *raw: bytes, parameters: Sequence[bytes] = (), **about: Any) -> Done:
    """Compute a batch that ends no process."""
    done, fault = computer.compute(computer.decode(work(*raw, parameters=parameters, **about)))
    assert done is not None
    assert fault is None
    return done


def compute(predict: Predict, *inputs: Any, parameters: Sequence[bytes] = ()) -> Done:
    return run(BatchComputer(Model(predict)), *map(msgspec.json.encode, inputs), parameters=parameters)


def outputs(done: Done) -> list[bytes]:
    """The outputs of the inputs that have one."""
    return [each.output for each in done.outcomes if isinstance(each, Ok)]
