"""Only the allowed shapes reach the model: batches are padded, split by length, and halved to other allowed sizes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.request import Failed, Ok, Rejected
from bunch import InputRejected
from tests.unit.computing import Model, Predict, outputs, run
from workers.executor.compute import BatchComputer
from workers.executor.shapes import Shapes

SIZES = (2, 4, 16)
ASCENDING = st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True).map(lambda each: tuple(sorted(each)))


class Seen:
    """Echoes, and keeps the inputs and the length buckets of each call."""

    def __init__(self, fails: Any = lambda inputs: None) -> None:
        self.calls: list[list[Any]] = []
        self.buckets: list[set[Any]] = []
        self._fails = fails

    def __call__(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        self.calls.append(inputs)
        self.buckets.append({each.get("length_bucket") for each in parameters})
        assert len(parameters) == len(inputs)
        self._fails(inputs)
        return list(inputs)

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.calls]


def computer(predict: Predict, shapes: Shapes) -> BatchComputer:
    return BatchComputer(Model(predict), shapes=shapes)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize(("count", "sizes"), [(1, [2]), (2, [2]), (3, [4]), (5, [16]), (16, [16]), (17, [16, 2])])
def test_a_batch_is_padded_with_its_last_input_to_an_allowed_size(count: int, sizes: list[int]) -> None:
    seen = Seen()
    done = run(computer(seen, Shapes(SIZES)), *numbers(count))
    assert outputs(done) == numbers(count)
    assert seen.sizes == sizes
    assert done.padding == sum(sizes) - count
    assert set(seen.calls[-1][-1:]) == {count - 1}


@given(ASCENDING, st.lists(st.integers(0, 30), min_size=1, max_size=60), st.sets(st.integers(0, 30), max_size=2))
def test_no_other_size_reaches_the_model_whatever_fails(
    sizes: tuple[int, ...], inputs: list[int], culprits: set[int]
) -> None:
    def fails(values: list[Any]) -> None:
        if culprits & set(values):
            raise ValueError("poison")

    seen = Seen(fails)
    done = run(computer(seen, Shapes(sizes)), *(b"%d" % each for each in inputs))
    assert set(seen.sizes) <= set(sizes)
    assert len(done.outcomes) == len(inputs)
    if not culprits & set(inputs):
        assert outputs(done) == [b"%d" % each for each in inputs]


def test_each_padding_input_is_a_copy_of_its_own() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [each.pop("n") + options.pop("plus", 0) for each, options in zip(inputs, parameters, strict=True)]

    done = run(computer(predict, Shapes((8,))), b'{"n":1}', b'{"n":2}', parameters=[b"{}", b'{"plus":1}'])
    assert outputs(done) == [b"1", b"3"]


def test_a_wrong_number_of_outputs_is_told_as_the_model_sees_it() -> None:
    done = run(computer(lambda inputs, _: inputs[:-1], Shapes((4,))), b"1", b"2")
    assert all(isinstance(each, Failed) and "3 outputs for 4 inputs" in each.message for each in done.outcomes)


def test_the_culprit_is_found_among_padded_halves() -> None:
    def fails(values: list[Any]) -> None:
        if 7 in values:
            raise ValueError("poison")

    seen = Seen(fails)
    done = run(computer(seen, Shapes(SIZES)), *numbers(16))
    assert [index for index, each in enumerate(done.outcomes) if not isinstance(each, Ok)] == [7]
    assert set(seen.sizes) <= set(SIZES)


def test_memory_that_runs_out_leads_to_the_next_smaller_size() -> None:
    def fails(values: list[Any]) -> None:
        if len(values) > 4:
            raise MemoryError

    seen = Seen(fails)
    # Half of it, 5 inputs, would be padded to 16 again.
    done = run(computer(seen, Shapes(SIZES)), *numbers(10))
    assert outputs(done) == numbers(10)
    assert seen.sizes == [16, 4, 4, 2]
    assert done.safe_size == 4
    seen.calls.clear()
    again = run(computer(seen, Shapes(SIZES)), *numbers(10), safe_size=5)
    assert outputs(again) == numbers(10)
    assert seen.sizes == [4, 4, 2], "a size between two is the smaller one"


def test_one_input_that_is_too_large_in_the_smallest_size_fails_alone() -> None:
    def fails(values: list[Any]) -> None:
        if 3 in values:
            raise MemoryError

    done = run(computer(Seen(fails), Shapes(SIZES)), *numbers(5))
    assert [index for index, each in enumerate(done.outcomes) if isinstance(each, Failed)] == [3]
    assert done.safe_size is None


BUCKETS = (10, 100, 1000)


def by_length(sizes: tuple[int, ...] = ()) -> tuple[Seen, BatchComputer]:
    seen = Seen()
    return seen, computer(seen, Shapes(sizes, BUCKETS, int))


def test_a_call_has_the_inputs_of_one_bucket_and_says_which() -> None:
    seen, by_bucket = by_length()
    done = run(by_bucket, b"5", b"500", b"50", b"7")
    assert outputs(done) == [b"5", b"500", b"50", b"7"]
    assert list(zip(seen.calls, seen.buckets, strict=True)) == [([500], {1000}), ([50], {100}), ([5, 7], {10})]
    assert done.passes == 1, "its time is that of a batch, and nothing was in search of a culprit"


def test_shorter_inputs_take_the_rows_that_would_be_padding() -> None:
    seen, by_bucket = by_length((1, 4))
    done = run(by_bucket, b"1", b"500", b"2", b"600", b"50", b"3")
    assert outputs(done) == [b"1", b"500", b"2", b"600", b"50", b"3"]
    assert seen.calls == [[500, 600, 50, 1], [2, 3, 3, 3]]
    assert seen.buckets == [{1000}, {10}]
    assert done.padding == 2


@given(ASCENDING, st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_every_input_is_in_one_call_of_an_allowed_shape(sizes: tuple[int, ...], lengths: list[int]) -> None:
    seen, by_bucket = by_length(sizes)
    done = run(by_bucket, *(b"%d" % each for each in lengths))
    assert outputs(done) == [b"%d" % each for each in lengths]
    assert set(seen.sizes) <= set(sizes)
    for inputs, bucket in zip(seen.calls, seen.buckets, strict=True):
        (most,) = bucket
        assert most in BUCKETS
        assert max(inputs) <= most
        assert max(inputs) > max([0, *(each for each in BUCKETS if each < most)]) or max(inputs) == 0


def test_an_input_over_the_largest_bucket_or_without_a_length_is_refused_alone() -> None:
    seen, by_bucket = by_length()
    fits, long, odd = run(by_bucket, b"5", b"1001", b'"x"').outcomes
    assert fits == Ok(b"5")
    assert long == Rejected("the input has length 1001; the limit is 1000")
    assert isinstance(odd, Failed)
    assert seen.calls == [[5]]


def test_every_shape_is_warmed_up_the_largest_first() -> None:
    seen = Seen()
    assert computer(seen, Shapes((1, 4), (10, 20), len)).warm_up(b'"text"') is None
    assert list(zip(seen.sizes, seen.buckets, strict=True)) == [(4, {20}), (1, {20}), (4, {10}), (1, {10})]
    assert seen.calls[0] == ["text"] * 4


@pytest.mark.parametrize(
    ("predict", "told"),
    [
        (lambda inputs, _: [InputRejected("no texts")] * len(inputs), "no texts"),
        (lambda inputs, _: inputs[:1], "1 outputs for 4 inputs"),
        (lambda inputs, _: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_warm_up_that_fails_says_why(predict: Predict, told: str) -> None:
    error = computer(predict, Shapes((1, 4))).warm_up(msgspec.json.encode("text"))
    assert error is not None
    assert told in error.message
