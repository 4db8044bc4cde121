"""Inputs that fail a whole call are found among their neighbours, in a bounded number of passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.request import Failed
from tests.unit.computing import Model, Predict, compute, outputs, run
from workers.executor.compute import BatchComputer


def poisoned(*culprits: int) -> Predict:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if set(inputs) & set(culprits):
            raise ValueError("poison")
        return inputs

    return predict


@pytest.mark.parametrize("culprits", [(0,), (63,), (31,), (0, 1), (17, 40), (3, 9, 27, 44, 60), (0, 1, 2, 3, 4)])
def test_only_the_culprits_fail_and_the_passes_are_bounded(culprits: tuple[int, ...]) -> None:
    computed = compute(poisoned(*culprits), *range(64))
    failed = {index for index, each in enumerate(computed.outcomes) if isinstance(each, Failed)}
    assert failed == set(culprits)
    assert outputs(computed) == [b"%d" % index for index in range(64) if index not in culprits]
    assert computed.passes - 1 <= 2 * 6 * len(culprits)


@settings(deadline=None)
@given(st.sets(st.integers(0, 63), max_size=8), st.integers(1, 64))
def test_any_few_culprits_are_found_among_any_neighbours(culprits: set[int], size: int) -> None:
    computed = compute(poisoned(*culprits), *range(size))
    failed = {index for index, each in enumerate(computed.outcomes) if isinstance(each, Failed)}
    assert failed >= {index for index in culprits if index < size}
    if len(failed) < size and len(culprits) <= 2:
        assert failed == {index for index in culprits if index < size}


def test_a_model_that_always_fails_is_not_asked_for_every_input() -> None:
    computed = compute(poisoned(*range(64)), *range(64))
    assert all(isinstance(each, Failed) for each in computed.outcomes)
    assert computed.passes <= 20


def test_a_transient_error_is_not_looked_for_in_the_inputs() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise ConnectionError("the API is away")

    computed = compute(predict, *range(64))
    assert computed.passes == 1
    assert all(isinstance(each, Failed) and each.retryable for each in computed.outcomes)


@pytest.mark.parametrize("culprit", [0, 11, 31])
def test_on_the_last_try_an_error_that_may_pass_is_looked_for_too(culprit: int) -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if culprit in inputs:
            raise TimeoutError("the download did not end")
        return inputs

    computer = BatchComputer(Model(predict))
    raw = [b"%d" % n for n in range(32)]
    first = run(computer, *raw)
    assert first.passes == 1
    assert all(isinstance(each, Failed) and each.retryable for each in first.outcomes)
    last = run(computer, *raw, last_try=True)
    assert [n for n, each in enumerate(last.outcomes) if isinstance(each, Failed)] == [culprit]


def test_an_outage_is_not_gone_through_input_by_input_on_the_last_try() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise ConnectionError("nobody there")

    computer = BatchComputer(Model(predict))
    computed = run(computer, *(b"%d" % n for n in range(64)), last_try=True)
    assert computed.passes < 10
    assert all(isinstance(each, Failed) and each.retryable for each in computed.outcomes)
