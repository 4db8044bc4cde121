"""The contract of an executor, for the real one and its twin."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batching.executor import Event, Executor, ExecutorGone, ExecutorState, Lost
from batching.request import Done, Failed, Ok, Rejected, Work
from config.settings import ModelSettings
from tests.fakes.executor import InlineExecutor
from tests.fakes.models import LoadsLater, Puppet
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

LONG_S = 30.0
Make = Callable[..., Executor]


@pytest.fixture(params=["inline", "process"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """`make()` or `make(until=path)`, one that cannot load until the path exists; stopped afterwards."""
    made: list[Executor] = []

    def inline(until: Path | None) -> Executor:
        if until is None:
            return InlineExecutor(Puppet().predict)
        model = LoadsLater(str(until))
        return InlineExecutor(model.predict, load=lambda: model.load("cpu"))

    def process(until: Path | None) -> Executor:
        name = "Puppet" if until is None else "LoadsLater"
        options = {} if until is None else {"until": str(until)}
        source = f"tests.fakes.models:{name}"
        return ProcessExecutor(ModelSettings(name="m", source=source, cache=False, options=options), 0)

    def build(until: Path | None = None) -> Executor:
        made.append(inline(until) if request.param == "inline" else process(until))
        return made[-1]

    yield build
    for begun in tmp_path.glob("*.begun"):
        begun.with_suffix("").touch()  # The twin's thread outlives its stop, and would wait for ever.
    for executor in made:
        executor.stop(0.0)


@pytest.fixture
def ready(make: Make) -> Executor:
    executor = make()
    executor.start()
    assert executor.wait_ready(LONG_S)
    return executor


def work(batch_id: str, *inputs: Any) -> Work:
    return Work(batch_id, [msgspec.json.encode(each) for each in inputs], [b"{}"] * len(inputs))


def hold(path: Path) -> dict[str, str]:
    return {"do": "hold", "path": str(path)}


def await_inside(path: Path) -> None:
    wait_until(lambda: path.with_suffix(".begun").exists())


def next_event(executor: Executor) -> Event:
    event = executor.receive(LONG_S)
    assert event is not None
    return event


def next_done(executor: Executor) -> Done:
    event = next_event(executor)
    assert isinstance(event, Done)
    return event


def kill(executor: Executor) -> None:
    if isinstance(executor, InlineExecutor):
        executor.kill()
    else:
        assert isinstance(executor, ProcessExecutor)
        assert executor.pid
        os.kill(executor.pid, signal.SIGKILL)


def test_nothing_runs_before_start(make: Make) -> None:
    executor = make()
    assert executor.state is ExecutorState.STARTING
    assert not executor.wait_ready(0.0)
    with pytest.raises(ExecutorGone):
        executor.send(work("a", 1))


def test_ready_after_start(ready: Executor) -> None:
    assert ready.state is ExecutorState.READY
    assert ready.error is None


def test_nothing_to_receive_from_an_idle_executor(ready: Executor) -> None:
    assert ready.receive(0.0) is None
    assert ready.receive(0.01) is None


def test_batches_are_answered_in_order_with_one_outcome_per_input(ready: Executor) -> None:
    ready.send(work("a", "one", 2, {"three": [3, None]}))
    ready.send(work("b", "four"))
    first, second = next_done(ready), next_done(ready)
    assert first.batch_id == "a"
    assert list(first.outcomes) == [Ok(b'"one"'), Ok(b"2"), Ok(b'{"three":[3,null]}')]
    assert second.batch_id == "b"
    assert list(second.outcomes) == [Ok(b'"four"')]
    assert first.compute_s >= 0.0


def test_an_error_for_one_input_is_that_inputs_alone(ready: Executor) -> None:
    broken = {"do": "return error", "text": "no such row"}
    refused = {"do": "return rejection", "text": "too dark"}
    ready.send(work("a", "one", broken, refused, "four"))
    one, failed, rejected, four = next_done(ready).outcomes
    assert one == Ok(b'"one"')
    assert isinstance(failed, Failed)
    assert "no such row" in failed.message
    assert failed.code == "INFERENCE_FAILED"
    assert rejected == Rejected("too dark")
    assert four == Ok(b'"four"')


def test_a_raised_exception_fails_its_culprit_alone(ready: Executor) -> None:
    ready.send(work("a", "one", {"do": "raise", "text": "no such row"}, "three"))
    ready.send(work("b", "two"))
    done = next_done(ready)
    one, failed, three = done.outcomes
    assert (one, three) == (Ok(b'"one"'), Ok(b'"three"'))
    assert isinstance(failed, Failed)
    assert "no such row" in failed.message
    assert "in _raise" in (failed.traceback or "")
    assert done.passes > 1
    assert list(next_done(ready).outcomes) == [Ok(b'"two"')]


def test_a_wrong_number_of_outputs_gives_nobody_anothers_answer(ready: Executor) -> None:
    ready.send(work("a", "one", {"do": "skip"}, "three"))
    outcomes = next_done(ready).outcomes
    assert len(outcomes) == 3
    assert all(isinstance(each, Failed) and "2 outputs for 3 inputs" in each.message for each in outcomes)


def test_a_death_tells_what_was_inside_from_what_waited(ready: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ready.send(work("inside", hold(gate)))
    await_inside(gate)
    ready.send(work("waiting", "two"))
    kill(ready)
    lost = next_event(ready)
    assert isinstance(lost, Lost)
    assert lost.inside == "inside"
    assert lost.waiting == ("waiting",)
    assert "kill" in lost.reason.lower()


def test_an_answer_before_a_death_is_not_lost(ready: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ready.send(work("done", "one"))
    ready.send(work("inside", hold(gate)))
    await_inside(gate)
    kill(ready)
    assert next_done(ready).batch_id == "done"
    lost = next_event(ready)
    assert isinstance(lost, Lost)
    assert (lost.inside, lost.waiting) == ("inside", ())


def test_it_comes_back_by_itself_after_a_death(ready: Executor) -> None:
    kill(ready)
    lost = next_event(ready)
    assert isinstance(lost, Lost)
    assert (lost.inside, lost.waiting) == (None, ())
    assert ready.wait_ready(LONG_S)
    ready.send(work("a", "again"))
    assert list(next_done(ready).outcomes) == [Ok(b'"again"')]


def test_a_failed_start_says_why_and_is_tried_again(make: Make, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    executor = make(until=weights)
    executor.start()
    wait_until(lambda: executor.state is ExecutorState.FAILED)
    assert "RuntimeError: the weights are missing" in (executor.error or "")
    with pytest.raises(ExecutorGone):
        executor.send(work("a", 1))
    assert not executor.wait_ready(0.0)
    weights.touch()
    assert executor.wait_ready(LONG_S)
    assert executor.error is None


def test_stop_lets_the_current_batch_finish(ready: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ready.send(work("a", hold(gate)))
    await_inside(gate)
    stopping = threading.Thread(target=ready.stop, args=(LONG_S,))
    stopping.start()

    def refuses() -> bool:
        try:
            ready.send(work("late", 1))
        except ExecutorGone:
            return True
        return False

    wait_until(refuses)
    gate.touch()
    stopping.join(LONG_S)
    assert ready.state is ExecutorState.STOPPED
    assert list(next_done(ready).outcomes) == [Ok(b'"held"')]


def test_stop_kills_what_does_not_finish(ready: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ready.send(work("a", hold(gate)))
    await_inside(gate)
    ready.stop(0.05)
    # It waits a little longer than it was told, and not for ever.
    wait_until(lambda: ready.state is ExecutorState.STOPPED)
    lost = next_event(ready)
    assert isinstance(lost, Lost)
    assert (lost.inside, lost.waiting) == ("a", ())
    with pytest.raises(ExecutorGone):
        ready.send(work("b", 1))


def test_an_idle_stop_is_no_loss(ready: Executor) -> None:
    ready.stop(LONG_S)
    assert ready.state is ExecutorState.STOPPED
    assert ready.receive(0.0) is None
    assert not ready.wait_ready(LONG_S)
    ready.stop(LONG_S)


def test_stop_without_start(make: Make) -> None:
    executor = make()
    executor.stop(LONG_S)
    assert executor.state is ExecutorState.STOPPED
    executor.start()
    assert not executor.wait_ready(LONG_S)
