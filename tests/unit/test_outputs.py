"""The outputs that a model may return for an input, as JSON, and those that it may not."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.request import RAW_BYTES, Failed, Ok, Rejected
from bunch import InputRejected, Output
from tests.unit.computing import Model, compute, outputs, run
from workers.executor.batch_budget import Budget
from workers.executor.compute import BatchComputer
from workers.executor.faults.exception_text import ItemError
from workers.executor.outputs import encode_output, outcome_of


class FakeTensor:
    """As far as this code can tell, torch's."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


def test_an_output_over_the_limit_is_that_items_error() -> None:
    raw = [b"10", b"5000", b"20"]
    computer = BatchComputer(Model(lambda inputs, parameters: ["x" * each for each in inputs]), max_output_bytes=1000)
    fits, huge, fits_too = run(computer, *raw).outcomes
    assert isinstance(fits, Ok)
    assert isinstance(fits_too, Ok)
    assert isinstance(huge, Failed)
    assert "5002 bytes" in huge.message
    assert "the limit is 1000" in huge.message


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
    assert (one, three) == (Ok(b"1"), Ok(b"3"))
    assert isinstance(error, Failed)
    assert "not JSON" in error.message


@pytest.mark.parametrize(
    ("output", "encoded"),
    [
        (np.longdouble("1.5"), b"1.5"),
        (np.array([[1.5], [2.5]], dtype=np.longdouble), b"[[1.5],[2.5]]"),
        ({1: "a", 2: {"3": "b"}}, b'{"1":"a","2":{"3":"b"}}'),
        ({"a": 2**70, "b": 1e22, "c": -0.0}, b'{"a":1180591620717411303424,"b":1e22,"c":-0.0}'),
    ],
)
def test_odd_numbers_and_keys_become_json(output: Any, encoded: bytes) -> None:
    assert encode_output(output) == encoded


class Malicious:
    """A model's own class may do anything when it is asked for its values."""

    def tolist(self) -> Any:
        raise SystemExit("the program is over")


@dataclass
class Holder:
    names: dict[Any, int]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ({1: "a", "1": "b"}, "both '1'"),
        ([{"deep": ({2.5: 1, "2.5": 2},)}], "both '2.5'"),
        (Holder({7: 1, "7": 2}), "both '7'"),
        (np.clongdouble(1), "no JSON form"),
        (np.longdouble("1e4000"), "NaN or Infinity"),
        (Malicious(), "SystemExit: the program is over"),
    ],
)
def test_what_would_be_read_otherwise_is_that_items_error(output: Any, told: str) -> None:
    one, error, three = compute(lambda inputs, _: [1, output, 3], 1, 2, 3).outcomes
    assert (one, three) == (Ok(b"1"), Ok(b"3"))
    assert isinstance(error, Failed)
    assert told in error.message


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.integers(0, 3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=1) | st.integers(0, 9), inner),
    )
)
def test_an_output_is_what_its_reader_sees_or_an_error(output: Any) -> None:
    encoded = encode_output(output)
    doubled = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        doubled.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    json.loads(msgspec.json.encode(output), object_pairs_hook=members)
    assert isinstance(encoded, ItemError) == bool(doubled)


class Frame:
    """As pandas' or TensorFlow's: an array by protocol, without `tolist`, and its shape is no tuple."""

    shape = frozenset({2})

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self) -> Any:
        return np.array(self._values)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (Frame([[1, 2], [3, 4]]), [b"[1,2]", b"[3,4]"]),
        ([Frame([1, 2]), {"all": Frame([3])}], [b"[1,2]", b'{"all":[3]}']),
        (np.array([[1, 2], [3, 4]]), [b"[1,2]", b"[3,4]"]),
        (np.array([True, False]), [b"true", b"false"]),
        (np.array(["a", "b"]), [b'"a"', b'"b"']),
        (np.array([1.5, math.nan]), [b"1.5", "NaN"]),
        (np.array([InputRejected("no"), 7], dtype=object), ["no", b"7"]),
    ],
)
def test_an_array_is_an_output_for_each_of_its_first_dimension(returned: Any, expected: list[Any]) -> None:
    for outcome, wanted in zip(compute(lambda inputs, _: returned, 1, 2).outcomes, expected, strict=True):
        if isinstance(outcome, Ok):
            assert outcome.output == wanted
        else:
            assert wanted in outcome.message


def test_a_tensors_values_are_fetched_once() -> None:
    class Tensor:
        shape = (2, 1)
        fetched = 0

        def tolist(self) -> Any:
            Tensor.fetched += 1
            return [[1.0], [2.0]]

    assert outputs(compute(lambda inputs, _: Tensor(), 1, 2)) == [b"[1.0]", b"[2.0]"]
    assert Tensor.fetched == 1


def test_a_tensor_that_fails_when_it_is_read_is_an_error_of_predict() -> None:
    class Tensor:
        shape = (2,)

        def tolist(self) -> Any:
            raise RuntimeError("an illegal access")

    computed = compute(lambda inputs, _: Tensor() if len(inputs) > 1 else inputs, 1, 2)
    assert outputs(computed) == [b"1", b"2"], "halved as if predict had raised"


class Secretive:
    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt("ask somebody else")

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        pass


class Moody(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit("not today")


@pytest.mark.parametrize(
    ("make", "told"),
    # Made in the test: pytest asks for the class of what it is given.
    [(Secretive, "ask somebody else"), (lambda: Output(1, Moody(a=1)), "not today")],
    ids=["its class", "its metadata"],
)
def test_whatever_an_output_does_when_it_is_looked_at_is_its_own_error(make: Callable[[], Any], told: str) -> None:
    one, error = compute(lambda inputs, _: [1, make()], 1, 2).outcomes
    assert one == Ok(b"1")
    assert isinstance(error, Failed)
    assert told in error.message


def test_metadata_of_an_output_goes_beside_it() -> None:
    returned = [
        Output(1, {"tokens_used": 3, "model_version": "mine"}),
        2,
        Output(InputRejected("no"), {"a": 1}),
        Output(4),
    ]
    first, second, refused, fourth = compute(lambda inputs, _: returned, *range(4)).outcomes
    assert (first, second, fourth) == (Ok(b"1", b'"tokens_used":3'), Ok(b"2"), Ok(b"4"))
    assert refused == Rejected("no")


def test_equal_inputs_share_the_metadata() -> None:
    computer = BatchComputer(Model(lambda inputs, _: [Output(each, {"n": each}) for each in inputs]), collapse=True)
    seven, eight = Ok(b"7", b'"n":7'), Ok(b"8", b'"n":8')
    assert run(computer, b"7", b"8", b"7").outcomes == [seven, eight, seven]


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ([1], "must be a dict"),
        ({1: 2}, "strings as keys"),
        ({"a": math.nan}, "NaN"),
        ({"a": object()}, "not JSON"),
        ({"a": "x" * 20_000}, "the limit is 16384"),
        ({"a": {1: 1, "1": 2}}, "both '1'"),
    ],
)
def test_metadata_that_cannot_be_told_is_that_items_error(metadata: Any, told: str) -> None:
    one, error = compute(lambda inputs, _: [1, Output(2, metadata)], 1, 2).outcomes
    assert one == Ok(b"1")
    assert isinstance(error, Failed)
    assert told in error.message


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_whatever_a_cost_raises_is_that_items_error(error: BaseException) -> None:
    def cost(value: Any) -> int:
        if value == 2:
            raise error
        return 1

    computer = BatchComputer(Model(lambda inputs, _: inputs), budget=Budget(cost, 10))
    one, failed, three = run(computer, b"1", b"2", b"3").outcomes
    assert (one, three) == (Ok(b"1"), Ok(b"3"))
    assert isinstance(failed, Failed)
    assert type(error).__name__ in failed.message


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_large_bytes_stay_as_they_are(kind: Any) -> None:
    """Below, they are base64 at once; the limit is that of base64 for both."""
    for size, raw in ((RAW_BYTES, False), (RAW_BYTES + 1, True)):
        value = bytes(size)
        found = outcome_of(Output(kind(value), {"content_type": "image/png"}))
        assert isinstance(found, Ok)
        assert (found.raw, type(found.output)) == (raw, bytes)
        assert found.in_json().output == b'"%b"' % base64.b64encode(value)
        assert found.in_json().metadata == found.metadata == b'"content_type":"image/png","output_type":"bytes"'
        assert found.in_json().raw is False
        encoded = len(found.in_json().output)
        assert isinstance(outcome_of(kind(value), encoded), Ok)
        assert isinstance(outcome_of(kind(value), encoded - 1), ItemError)
