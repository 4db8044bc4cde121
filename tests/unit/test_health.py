"""When a process is done for, who is told guilty of it, and who is not; no process involved."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.request import Done, Failed
from tests.unit.computing import run, work
from workers.executor.batch_budget import Budget
from workers.executor.compute import BatchComputer
from workers.executor.faults.recovery import FIRST_PAUSE_S, FRUITLESS, MAX_PAUSE_S, Patience
from workers.executor.ipc import Fault
from workers.models import TransientError

DEVICE = "CUDA error: device-side assert triggered"


class Context:
    """A model in a process whose context an input may poison: `now`, `later` (the next call), or without a `word`."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.error: Exception | None = None

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        self.seen.append(inputs)
        if self.error:
            raise self.error
        for poison in {"now", "later", "word"} & {each for each in inputs if isinstance(each, str)}:
            self.error = ValueError("broken") if poison == "word" else RuntimeError(DEVICE)
            if poison != "later":
                raise self.error
        if "bad" in inputs:
            raise ValueError("bad")
        return inputs


class Process:
    """A fresh one, with what it did of each batch."""

    def __init__(self, model: Any = None, budget: Budget | None = None) -> None:
        self.model = model or Context()
        self.computer = BatchComputer(self.model, budget=budget, watched=True)

    def run(self, *inputs: Any, **about: bool) -> Computed:
        return Computed(*self.computer.compute(self.computer.decode(work(*map(msgspec.json.encode, inputs), **about))))


class Computed(NamedTuple):
    done: Done | None
    fault: Fault | None


def failed(computed: Computed) -> list[bool]:
    """The outcome of each input, if they are answered at all."""
    return [isinstance(each, Failed) for each in computed.done.outcomes] if computed.done else []


@pytest.mark.parametrize("poison", ["now", "word"])
def test_a_batch_of_several_is_not_charged_with_what_poisoned_the_process(poison: str) -> None:
    process = Process()
    computed = process.run(1, 2, poison, 3)
    assert computed.fault
    assert (computed.fault.settled, computed.fault.reached, computed.done) == (False, True, None)


def test_a_device_fault_ends_the_batch_at_once() -> None:
    process = Process()
    assert process.run(*range(30), "now").fault == Fault("device", f"RuntimeError: {DEVICE}")
    assert len(process.model.seen) == 1


@pytest.mark.parametrize("poison", ["now", "later"])
def test_a_suspect_that_was_alone_is_told_guilty_and_its_neighbours_are_not(poison: str) -> None:
    process = Process()
    for n in range(5):
        computed = process.run(n, suspect=True)
        assert (computed.fault, failed(computed)) == (None, [False])
    computed = process.run(poison, suspect=True)
    assert computed.fault
    assert (computed.fault.cause, computed.fault.settled, failed(computed)) == ("device", True, [True])


def test_an_error_that_surfaces_in_the_following_call_of_a_batch_convicts_the_one_before() -> None:
    computed = Process(budget=Budget(lambda each: 1, 2)).run("later", 1, 2, 3)
    assert computed.fault
    # Two had an output already; nobody is answered before it is known whose fault it was.
    assert (computed.fault.settled, computed.done) == (False, None)
    process, told = Process(), {}
    for each in (1, "later", 2, 3):
        computed = process.run(each, suspect=True)
        told[each] = failed(computed)
        if computed.fault:
            assert computed.fault.settled
            process = Process()
    assert told == {1: [False], "later": [True], 2: [False], 3: [False]}


def test_without_a_word_of_the_device_it_is_known_by_what_came_through_before() -> None:
    process = Process()
    process.run(1, suspect=True)
    computed = process.run("word", suspect=True)
    assert computed.fault
    assert (computed.fault.cause, computed.fault.settled, failed(computed)) == ("barren", True, [True])


def test_an_input_that_fails_without_harm_is_its_own_affair_alone_and_in_company() -> None:
    process = Process()
    process.run(1)
    for batch in (["bad"], ["bad"], ["bad", "bad", "bad"], ["bad", 2]):
        computed = process.run(*batch)
        assert computed.fault is None
        assert failed(computed) == [each == "bad" for each in batch]


def test_whoever_follows_a_poison_that_shows_late_is_not_charged_even_alone() -> None:
    process = Process()
    assert failed(process.run("later")) == [False]
    computed = process.run("innocent")
    assert computed.fault
    assert not computed.fault.settled


def test_a_suspect_is_not_computed_in_a_process_that_was_poisoned_before_it() -> None:
    process = Process()
    process.run(1, "later")
    seen = len(process.model.seen)
    computed = process.run("innocent", suspect=True)
    assert computed.fault
    assert (computed.fault.reached, computed.fault.settled) == (False, False)
    assert ["innocent"] not in process.model.seen[seen:]


def test_in_a_process_that_never_computed_anything_the_first_alone_is_guilty_and_the_second_is_not() -> None:
    process = Process()
    assert failed(process.run("word")) == [True]
    computed = process.run("innocent")
    assert computed.fault
    assert (computed.fault.cause, computed.fault.settled) == ("barren", False)


@pytest.mark.parametrize("error", [TransientError("not now"), ConnectionError(), MemoryError()])
def test_what_says_nothing_about_the_process_ends_none(error: Exception) -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise error

    process = Process(SimpleNamespace(predict=predict))
    for _ in range(3):
        assert process.run(1, 2).fault is None


def test_a_model_that_miscounts_ends_no_process() -> None:
    process = Process(SimpleNamespace(predict=lambda inputs, parameters: None))
    for _ in range(3):
        assert process.run(1, 2).fault is None


@pytest.mark.parametrize("returned", [RuntimeError(DEVICE), "a tensor"])
def test_a_device_fault_is_met_in_the_outputs_too(returned: object) -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [returned if isinstance(returned, Exception) else Tensor() for _ in inputs]

    class Tensor:
        def tolist(self) -> Any:
            raise RuntimeError(DEVICE)

    computed = Process(SimpleNamespace(predict=predict)).run(1, 2)
    assert computed.fault
    assert (computed.fault.cause, computed.fault.settled) == ("device", False)


def test_where_torch_says_when_the_device_is_done_an_asynchronous_error_meets_its_own_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()

    def synchronize() -> None:
        if process.model.error:
            raise process.model.error

    monkeypatch.setitem(
        sys.modules,
        "torch",
        SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)),
    )
    process.run(1, 2)
    computed = process.run("later")
    assert computed.fault
    # It had an output already, which is not to be trusted.
    assert (computed.fault.settled, failed(computed)) == (True, [True])
    # Nobody has to be asked again where the device itself was.
    assert process.model.seen == [[1, 2], ["later"]]


def test_a_process_that_may_not_end_answers_what_it_has() -> None:
    barren = Process().run("word", 1, may_end=False)
    assert (barren.fault, failed(barren)) == (None, [True, True])
    device = Process().run("now", 1, may_end=False)
    assert device.fault
    # It is done for all the same.
    assert (device.fault.settled, failed(device)) == (True, [True, True])


def test_one_that_asks_somebody_else_has_nothing_to_be_poisoned() -> None:
    model = Context()
    computer = BatchComputer(model)
    for _ in range(3):
        run(computer, b'"word"', b"1")


@given(st.sets(st.integers(0, 40), max_size=4), st.sampled_from(["now", "later", "word"]), st.integers(2, 41))
def test_nobody_but_the_culprits_fails_and_each_costs_one_process(culprits: set[int], poison: str, size: int) -> None:
    """As the claim loop does it: the batch, and if its process is done for each of its members alone in the next."""
    culprits = {each for each in culprits if each < size}
    inputs: list[Any] = [poison if n in culprits else n for n in range(size)]
    process, used = Process(), 1
    computed = process.run(*inputs)
    if poison == "later":
        # All of it came through; it shows with whoever is next.
        assert failed(computed) == [False] * size
        return
    if computed.fault is None:
        assert not culprits
        return
    process, used = Process(), 2
    told: list[bool] = []
    pending = list(inputs)
    while pending:
        computed = process.run(pending[0], suspect=True)
        if computed.done is not None:
            told += failed(computed)
            pending.pop(0)
        if computed.fault is not None:
            process, used = Process(), used + 1
    assert told == [n in culprits for n in range(size)]
    assert used <= 2 + len(culprits)


def granted(patience: Patience, now: float, step_s: float, times: int) -> int:
    """The number of replacements that a model gets which never computes anything and asks once every `step_s`."""
    count = 0
    for n in range(times):
        if patience.grants(now + n * step_s):
            patience = patience.replaced(now + n * step_s)
            count += 1
    return count


def test_a_broken_model_is_replaced_a_few_times_and_then_ever_more_rarely() -> None:
    assert granted(Patience(), 0.0, 0.001, 1000) == FRUITLESS
    pauses = 1 + granted(Patience(FRUITLESS, FIRST_PAUSE_S), 0.0, 1.0, 600)
    assert pauses < 8


@given(st.integers(0, 10_000), st.floats(0, 1e9))
def test_the_pause_is_bounded(fruitless: int, now: float) -> None:
    assert Patience(fruitless, now).replaced(now).until <= now + MAX_PAUSE_S
    assert Patience(fruitless, now).replaced(now).grants(now + MAX_PAUSE_S)
