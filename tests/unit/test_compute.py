"""The work of the executor's child on a batch; no process involved."""

from __future__ import annotations

import asyncio
import json
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.request import Done, Failed, Ok, Rejected, Words
from tasks.protocol import kombu_types
from tasks.protocol.messages import read_message
from tests.fakes.messages import celery_message, entry, our_message
from tests.unit.computing import Model, Predict, compute, outputs, run
from workers.executor.compute import BatchComputer
from workers.executor.faults.exception_text import MAX_MESSAGE, MAX_TRACEBACK
from workers.models import InputRejected, InvalidInput
from workers.models.function import FunctionModel


def test_inputs_and_parameters_arrive_decoded_and_in_order() -> None:
    seen: list[Any] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        seen.append((inputs, parameters))
        return inputs

    compute(predict, "a", {"b": None}, parameters=[b'{"k":1}', b"{}"])
    assert seen == [(["a", {"b": None}], [{"k": 1}, {}])]


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.lists(st.text())), max_size=20))
def test_any_batch_of_an_echo_comes_back_as_it_went(inputs: list[Any]) -> None:
    computed = compute(lambda values, _: values, *inputs)
    assert computed.passes == (1 if inputs else 0)
    assert list(map(json.loads, outputs(computed))) == inputs


def test_what_kombus_json_says_beyond_json_arrives_as_in_a_celery_task() -> None:
    value = {"id": uuid.UUID(int=5), "at": [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2)], "raw": b"\xff\x00"}
    more = {"price": Decimal("1.10"), "at": time(1, 2)}
    request = read_message(entry(celery_message([value], {"parameters": more})), 1000)
    seen: list[Any] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        seen.append((inputs, parameters))
        return inputs

    computed = run(BatchComputer(Model(predict)), request.input, parameters=[request.parameters])
    assert seen == [([value], [more])]
    (output,) = outputs(computed)
    assert json.loads(output)["id"] == str(value["id"])


@pytest.mark.parametrize("value", ['"__type__":"uuid","__value__":{"hex":"no"}', '"__type__":"ours","__value__":1'])
def test_of_these_only_those_that_kombu_knows(value: str) -> None:
    raw = kombu_types.marked(b"[{%s}]" % value.encode())
    good = b"1"
    computed = run(BatchComputer(Model(lambda inputs, _: inputs)), raw, good)
    assert isinstance(computed.outcomes[0], Rejected)
    assert (computed.outcomes[0].exc_type, computed.outcomes[1]) == ("InvalidInput", Ok(b"1"))


def test_from_a_frontend_it_is_a_plain_object() -> None:
    raw = b'{"__type__":"uuid","__value__":{"hex":"no"}}'
    request = read_message(entry(our_message("id", raw)), 1000)
    computed = run(BatchComputer(Model(lambda inputs, _: inputs)), request.input, parameters=[request.parameters])
    assert computed.outcomes == [Ok(raw)]


def test_what_a_model_does_to_its_inputs_stays_in_its_batch() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        outputs = [dict(each) for each in inputs]
        for value, options in zip(inputs, parameters, strict=True):
            value["seen"] = options["seen"] = True
        inputs.clear()
        return outputs

    computer = BatchComputer(Model(predict))
    shared = b'{"x":1}'
    for _ in range(2):
        computed = run(computer, shared, shared)
        assert computed.outcomes == [Ok(shared)] * 2


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda inputs: inputs[:-1], "2 outputs for 3 inputs"),
        (lambda inputs: [*inputs, "more"], "4 outputs for 3 inputs"),
        (lambda inputs: [], "0 outputs for 3 inputs"),
        (lambda inputs: (each for each in inputs), "a generator for 3 inputs"),
        (lambda inputs: dict.fromkeys("abc"), "a dict for 3 inputs"),
        (lambda inputs: "abc", "a str for 3 inputs"),
        (tuple, "a tuple for 3 inputs"),
        (lambda inputs: np.zeros((2, 3)), "a ndarray of shape (2, 3) for 3 inputs"),
        (lambda inputs: np.float32(3), "a float32 of shape () for 3 inputs"),
        (lambda inputs: np.ndarray, "a type for 3 inputs"),
        (lambda inputs: None, "a NoneType for 3 inputs"),
    ],
)
def test_anything_but_one_output_each_is_the_whole_batchs_error(
    returned: Callable[[list[Any]], Any], told: str
) -> None:
    computed = compute(lambda inputs, _: returned(inputs), 1, 2, 3)
    for outcome in computed.outcomes:
        assert isinstance(outcome, Failed)
        assert told in outcome.message
    assert computed.passes == 1, "asking again would not help"


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1), asyncio.CancelledError(), MemoryError()])
def test_what_predict_raises_for_every_input_fails_them_all(error: BaseException) -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise error

    computed = compute(predict, 1, 2)
    for outcome in computed.outcomes:
        assert isinstance(outcome, Failed)
        assert type(error).__name__ in outcome.message
        assert "in predict" in (outcome.traceback or "")
    assert computed.passes == 3


def test_nothing_of_a_failed_call_is_kept_alive() -> None:
    """A traceback's frames hold the batch's tensors; who keeps the exception keeps them (celery/celery#8882)."""
    tensors: list[weakref.ref[Tensor]] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        raise ValueError(f"with {tensor} in its frame")

    computer = BatchComputer(Model(predict))
    computed = run(computer, b"1", b"2", b"3")
    assert all(isinstance(each, Failed) and each.traceback for each in computed.outcomes)
    assert [each() for each in tensors] == [None] * len(tensors)


class Tensor:
    pass


def test_a_refusal_that_is_raised_finds_its_input() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if 3 in inputs:
            raise InputRejected("no threes")
        return inputs

    outcomes = compute(predict, 1, 2, 3, 4).outcomes
    assert outcomes == [Ok(b"1"), Ok(b"2"), Rejected("no threes"), Ok(b"4")]


def test_each_further_pass_says_that_the_batch_is_alive_and_sees_untouched_inputs() -> None:
    told: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        seen = [each["n"] for each in inputs]
        for each in inputs:
            each["n"] = -1
        if 2 in seen:
            raise ValueError("poison")
        return seen

    computer = BatchComputer(Model(predict), on_pass=lambda: told.append(1))
    computed = run(computer, *(b'{"n":%d}' % index for index in range(4)))
    assert outputs(computed) == [b"0", b"1", b"3"]
    assert isinstance(computed.outcomes[2], Failed)
    assert len(told) == computed.passes - 1


def test_an_exception_among_the_outputs_is_one_inputs_alone() -> None:
    outputs = [1, ValueError("no"), InputRejected("too long"), InvalidInput("no text"), 5]
    computed = compute(lambda inputs, _: outputs, *range(5))
    assert computed.outcomes == [
        Ok(b"1"),
        Failed("ValueError: no", words=Words.INPUT),
        Rejected("too long"),
        Rejected("no text", "InvalidInput"),
        Ok(b"5"),
    ]


def test_the_names_of_a_models_own_refusals_stay_off_the_wire() -> None:
    class TooDark(InputRejected):
        pass

    (outcome,) = compute(lambda inputs, _: [TooDark()], 1).outcomes
    assert isinstance(outcome, Rejected)
    assert outcome.exc_type == "InputRejected"
    assert outcome.message


def test_very_long_errors_are_cut() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise ValueError("x" * 1_000_000)

    (error,) = compute(predict, 1).outcomes
    assert isinstance(error, Failed)
    assert len(error.message) == MAX_MESSAGE
    assert len(error.traceback or "") <= MAX_TRACEBACK + 1


@pytest.mark.parametrize(("depth", "fits"), [(200, True), (201, False), (900, False)])
def test_an_output_nested_too_deep_for_its_readers_is_that_items_error(depth: int, fits: bool) -> None:
    deep: Any = "[[[{{{"
    for _ in range(depth):
        deep = [deep]
    flat = [["[" * 50] * 2] * 300
    one, nested, three = compute(lambda inputs, _: [1, deep, flat], 1, 2, 3).outcomes
    assert one == Ok(b"1")
    assert isinstance(three, Ok)
    assert isinstance(nested, Ok) is fits
    if isinstance(nested, Failed):
        assert "nested" in nested.message


def test_an_exception_that_cannot_be_shown_is_still_told() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    outcome = compute(lambda inputs, _: [Unspeakable()], 1).outcomes[0]
    assert isinstance(outcome, Failed)
    assert "Unspeakable" in outcome.message


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b'"\\ud800"', b"\xff", b"[" * 100_000])
def test_unreadable_input_is_refused_alone(raw: bytes) -> None:
    calls: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        calls.append(len(inputs))
        return inputs

    computer = BatchComputer(Model(predict))
    computed = run(computer, b"1", raw, b"3")
    assert outputs(computed) == [b"1", b"3"]
    refused = computed.outcomes[1]
    assert isinstance(refused, Rejected)
    assert refused.exc_type == "InvalidInput"
    assert run(computer, raw).passes == 0
    assert calls == [2], "without a readable input the model is not asked"


def test_parameters_that_are_no_object_are_refused_alone() -> None:
    computed = compute(lambda inputs, _: inputs, 1, 2, parameters=[b"[]", b"{}"])
    refused, two = computed.outcomes
    assert isinstance(refused, Rejected)
    assert "parameters" in refused.message
    assert two == Ok(b"2")


@pytest.mark.parametrize("form", [[], {}, ["npy"], 5, None, True, "", "npz"])
def test_a_form_of_output_that_there_is_not_is_refused_alone(form: object) -> None:
    calls: list[int] = []
    parameters = [msgspec.json.encode({"$output": form}), b'{"$output":"npy"}']
    refused, two = compute(lambda inputs, _: calls.append(len(inputs)) or inputs, 1, 2, parameters=parameters).outcomes
    assert isinstance(refused, Rejected)
    assert (refused.exc_type, "$output" in refused.message) == ("InvalidInput", True)
    assert isinstance(two, Ok)
    assert calls == [1]


def test_refused_inputs_stay_refused_when_their_neighbours_fail() -> None:
    def function(inputs: list[str]) -> list[str]:
        raise ValueError("bad")

    model = FunctionModel(function)
    computed = run(BatchComputer(model, model.refuse), b"1", b'"text"')
    assert [type(each) for each in computed.outcomes] == [Rejected, Failed]


def seen_by(predict: Predict, *inputs: Any, parameters: Sequence[bytes] = ()) -> tuple[list[Any], Done]:
    """The inputs that reached a model that collapses, in all of its calls, and the outcomes."""
    seen: list[Any] = []

    def watched(values: list[Any], options: list[dict[str, Any]]) -> Any:
        seen.extend(values)
        return predict(values, options)

    computer = BatchComputer(Model(watched), collapse=True)
    return seen, run(computer, *map(msgspec.json.encode, inputs), parameters=parameters)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=20))
def test_equal_inputs_are_computed_once_and_each_gets_its_own_answer(pairs: list[tuple[int, int]]) -> None:
    options = [b'{"k":%d}' % k for _, k in pairs]
    seen, computed = seen_by(
        lambda values, parameters: [[v, p["k"]] for v, p in zip(values, parameters, strict=True)],
        *(value for value, _ in pairs),
        parameters=options,
    )
    assert len(seen) == len(set(pairs))
    assert [tuple(json.loads(each)) for each in outputs(computed)] == pairs
    assert computed.collapsed == len(pairs) - len(set(pairs))


def test_equal_inputs_share_a_failure_and_their_neighbours_do_not() -> None:
    def predict(values: list[Any], _: list[dict[str, Any]]) -> list[Any]:
        if "bad" in values:
            raise ValueError
        return values

    _, computed = seen_by(predict, "bad", "good", "bad", "good")
    assert [isinstance(each, Failed) for each in computed.outcomes] == [True, False, True, False]


def test_a_model_that_did_not_ask_for_it_sees_every_input() -> None:
    computed = compute(lambda values, _: [len(values)] * len(values), "a", "a")
    assert (computed.outcomes, computed.collapsed) == ([Ok(b"2")] * 2, 0)
