"""Passes by cost: every input once, within the budget, and with little padding where that is asked for."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from batching.request import Done, Rejected
from tests.unit import computing
from workers.executor.batch_budget import Budget
from workers.executor.compute import BatchComputer
from workers.models import InputRejected

MOST = 100
costs = st.lists(st.integers(0, 2 * MOST), max_size=60)


def parts_of(costs: list[int], *, grouped: bool) -> list[list[int]]:
    return Budget(int, MOST, grouped).parts(range(len(costs)), costs)


@given(costs=costs, grouped=st.booleans())
def test_every_input_is_in_one_part(costs: list[int], grouped: bool) -> None:
    parts = parts_of(costs, grouped=grouped)
    assert sorted(index for part in parts for index in part) == list(range(len(costs)))
    assert all(parts)


@given(costs=costs)
def test_in_order_of_arrival_and_within_the_budget(costs: list[int]) -> None:
    parts = parts_of(costs, grouped=False)
    assert [index for part in parts for index in part] == list(range(len(costs)))
    assert all(sum(costs[index] for index in part) <= MOST for part in parts if len(part) > 1)


@given(costs=costs)
def test_grouped_parts_keep_to_the_budget_with_their_padding(costs: list[int]) -> None:
    for part in parts_of(costs, grouped=True):
        assert len(part) == 1 or len(part) * max(costs[index] for index in part) <= MOST


def test_grouping_pads_less() -> None:
    mixed = [10, 90, 10, 90, 10, 90, 10]
    assert parts_of(mixed, grouped=True) == [[0, 2, 4, 6], [1], [3], [5]]


class Lengths:
    """Answers with its input, and writes down the calls. What it weighs by may fail."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        self.calls.append(inputs)
        return inputs

    def cost(self, input: str) -> int:
        if input == "bad":
            raise InputRejected("not to be weighed")
        return len(input)


def run(model: Lengths, texts: list[str], budget: Budget) -> Done:
    return computing.run(BatchComputer(model, budget=budget), *map(msgspec.json.encode, texts))


def test_a_batch_over_the_budget_runs_in_several_calls_and_each_answer_is_its_own() -> None:
    model = Lengths()
    texts = ["a" * 60, "b" * 30, "c" * 50, "d" * 200, "e"]
    done = run(model, texts, Budget(model.cost, MOST))
    assert list(map(msgspec.json.decode, computing.outputs(done))) == texts
    assert [[text[0] for text in call] for call in model.calls] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_what_cannot_be_weighed_fails_alone() -> None:
    model = Lengths()
    done = run(model, ["a", "bad", "c"], Budget(model.cost, MOST))
    assert isinstance(done.outcomes[1], Rejected)
    assert model.calls == [["a", "c"]]
