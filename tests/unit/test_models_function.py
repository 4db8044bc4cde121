from __future__ import annotations

import pytest

from workers.models import InvalidInput
from workers.models.function import FunctionModel


def test_the_function_gets_the_strings_and_nothing_else() -> None:
    seen: list[list[str]] = []

    def batchstring(inputs: list[str]) -> list[str]:
        seen.append(inputs)
        return [text[::-1] for text in inputs]

    model = FunctionModel(batchstring)
    model.load("cpu")
    assert model.predict(["ab", ""], [{"ignored": 1}, {}]) == ["ba", ""]
    assert seen == [["ab", ""]]


def test_strings_are_taken() -> None:
    assert FunctionModel.refuse("") is None
    assert FunctionModel.refuse("text") is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1, "a number"),
        (1.5, "a number"),
        (True, "a boolean"),
        (None, "null"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_anything_else_is_refused_by_its_json_name(value: object, told: str) -> None:
    refusal = FunctionModel.refuse(value)
    assert isinstance(refusal, InvalidInput)
    assert told in refusal.message
