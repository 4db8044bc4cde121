"""What a model may return for an input, as JSON; and what it may not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from workers.compute import BatchComputer, Computed, encode_output
from workers.frames import ItemError

Predict = Callable[[list[Any], list[dict[str, Any]]], Any]


class Model:
    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def load(self, device: str) -> None:
        pass


def compute(predict: Predict, *inputs: Any, parameters: list[bytes] | None = None) -> Computed:
    raw = [msgspec.json.encode(each) for each in inputs]
    return BatchComputer(Model(predict)).run(raw, parameters or [b"{}"] * len(raw))


class FakeTensor:
    """As far as this code can tell, torch's."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


def test_an_output_over_the_limit_is_that_items_error() -> None:
    raw = [b"10", b"5000", b"20"]
    computer = BatchComputer(Model(lambda inputs, parameters: ["x" * each for each in inputs]), max_output_bytes=1000)
    fits, huge, fits_too = computer.run(raw, [b"{}"] * 3).outcomes
    assert isinstance(fits, bytes)
    assert isinstance(fits_too, bytes)
    assert isinstance(huge, ItemError)
    assert "5002 bytes" in huge.message
    assert "at most 1000" in huge.message


@pytest.mark.parametrize(
    ("output", "encoded"),
    [
        (np.arange(3), b"[0,1,2]"),
        (np.float32(1.5), b"1.5"),
        (np.float64(1.5), b"1.5"),
        (np.int64(7), b"7"),
        (np.bool_(True), b"true"),
        (FakeTensor([[1.0], [2.0]]), b"[[1.0],[2.0]]"),
        ({"scores": np.array([0.5]), "best": np.int8(1)}, b'{"scores":[0.5],"best":1}'),
        ({"nothing": None}, b'{"nothing":null}'),
        ("null", b'"null"'),
        (2**70, str(2**70).encode()),
    ],
)
def test_outputs_become_json(output: Any, encoded: bytes) -> None:
    assert encode_output(output) == encoded


@pytest.mark.parametrize(
    "output",
    [
        math.nan,
        [1.0, math.inf],
        {"a": {"b": [None, -math.inf]}},
        (math.nan,),
        {math.nan},
        np.array([1.0, np.nan]),
        np.float32("inf"),
        {"deep": FakeTensor([math.nan])},
    ],
)
def test_not_a_number_is_that_items_error_and_says_so(output: Any) -> None:
    error = encode_output(output)
    assert isinstance(error, ItemError)
    assert "NaN or Infinity" in error.message
    assert not error.rejected


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("output", [object(), print, ValueError, "\ud800", (x for x in "ab"), _endless()])
def test_what_json_cannot_say_is_that_items_error(output: Any) -> None:
    computed = compute(lambda inputs, _: [1, output, 3], 1, 2, 3)
    one, error, three = computed.outcomes
    assert (one, three) == (b"1", b"3")
    assert isinstance(error, ItemError)
    assert "not JSON" in error.message
