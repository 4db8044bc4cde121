"""An executor whose process comes and goes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batching.executor import Cause, ExecutorGone, ExecutorState
from batching.request import Done
from config.settings import ModelSettings
from tests.integration.executors import LONG_S, run, stop, work
from tests.processes import alive
from tests.waiting import wait_until
from workers.executor.on_demand import OnDemandExecutor
from workers.executor.process_executor import ProcessExecutor

Make = Callable[..., OnDemandExecutor]
PUPPET = ModelSettings(name="m", source="tests.fakes.models:Puppet", cache=False)


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[OnDemandExecutor] = []

    def build(source: str = "tests.fakes.models:Puppet", **settings: Any) -> OnDemandExecutor:
        own = {key: settings.pop(key) for key in ("on_change", "on_replaced") if key in settings}
        made.append(OnDemandExecutor(ModelSettings(name="m", source=source, cache=False, **settings), 0, **own))
        made[-1].start()
        return made[-1]

    yield build
    for executor in made:
        stop(executor)


def load(executor: OnDemandExecutor) -> int:
    executor.load()
    assert executor.state in {ExecutorState.STARTING, ExecutorState.READY}
    assert executor.wait_ready(LONG_S), executor.error
    assert executor.pid is not None
    return executor.pid


def unload(executor: OnDemandExecutor) -> None:
    executor.unload()
    wait_until(lambda: executor.is_out, what="its process is gone")


def test_it_has_no_process_until_it_is_loaded_and_none_after_it_was_unloaded(make: Make) -> None:
    replaced: list[Cause] = []
    executor = make(on_replaced=replaced.append)
    assert (executor.state, executor.pid, executor.is_out) == (ExecutorState.UNLOADED, None, True)
    with pytest.raises(ExecutorGone):
        executor.send(work("b1", 1))
    first = load(executor)
    run(executor, "b2")
    assert (executor.requests, executor.is_out) == (1, False)
    unload(executor)
    assert (executor.state, executor.pid, executor.error) == (ExecutorState.UNLOADED, None, None)
    assert not alive(first)
    assert load(executor) != first
    run(executor, "b3")
    assert (executor.starts, executor.restarts, replaced) == (2, 0, [])


def test_a_batch_in_hand_is_finished_before_the_process_ends(make: Make, tmp_path: Path) -> None:
    executor = make()
    load(executor)
    gate = tmp_path / "gate"
    executor.send(work("b1", {"do": "hold", "path": str(gate)}))
    wait_until(gate.with_suffix(".begun").exists, what="the batch is inside")
    executor.unload()
    assert not executor.is_out
    gate.touch()
    done = executor.receive(LONG_S)
    assert isinstance(done, Done)
    assert done.batch_id == "b1"
    wait_until(lambda: executor.is_out)


def test_a_load_that_fails_is_not_repeated_until_it_is_asked_for(make: Make, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    executor = make("tests.fakes.models:LoadsLater", options={"until": str(weights)})
    executor.load()
    wait_until(lambda: executor.is_out and executor.state is ExecutorState.FAILED, what="the load has failed")
    assert "the weights are missing" in (executor.error or "")
    weights.touch()
    assert not executor.wait_ready(0.5)
    assert executor.starts == 1
    # What requests see after the pause; the reason stays.
    executor.unload()
    assert (executor.state, bool(executor.error)) == (ExecutorState.UNLOADED, True)
    load(executor)
    assert executor.error is None


def test_after_a_load_that_failed_a_reload_is_taken_for_the_next_one(make: Make) -> None:
    executor = make("tests.fakes.models:Absent")
    executor.load()
    wait_until(lambda: executor.is_out and executor.state is ExecutorState.FAILED, what="the load has failed")
    executor.replace(PUPPET)
    assert (executor.state, executor.is_out) == (ExecutorState.UNLOADED, True)
    load(executor)


def test_a_process_that_dies_while_it_loads_is_a_load_that_failed(make: Make) -> None:
    executor = make("tests.fakes.models:DiesLoading")
    executor.load()
    wait_until(lambda: executor.is_out and executor.state is ExecutorState.FAILED, what="the load has failed")


def test_a_process_that_dies_after_that_is_replaced_as_any_other(make: Make) -> None:
    executor = make()
    first = load(executor)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: executor.pid not in {first, None}, what="another process")
    assert executor.wait_ready(LONG_S)
    assert executor.restarts == 1


def test_an_unload_while_it_loads_ends_in_no_process(make: Make) -> None:
    executor = make("tests.fakes.models:LoadsSlowly", options={"load_ms": 300})
    executor.load()
    wait_until(lambda: executor.pid is not None, what="it loads")
    unload(executor)
    assert (executor.state, executor.pid) == (ExecutorState.UNLOADED, None)


def test_a_load_that_comes_while_it_leaves_is_not_taken_for_its_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make()
    load(executor)
    leave = executor._leave

    def loaded_meanwhile() -> None:
        executor.load()
        leave()

    monkeypatch.setattr(executor, "_leave", loaded_meanwhile)
    executor.unload()
    wait_until(lambda: executor.starts == 2 and executor.state is ExecutorState.READY, what="it is loaded again")
    assert (executor.is_out, executor.restarts) == (False, 0)


def test_a_reload_after_a_load_has_failed_and_before_it_is_out_is_not_undone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make("tests.fakes.models:Absent")
    leave = executor._leave

    def reloaded_meanwhile() -> None:
        if executor.error:
            executor.replace(PUPPET)
        leave()

    monkeypatch.setattr(executor, "_leave", reloaded_meanwhile)
    executor.load()
    wait_until(lambda: executor.is_out)
    assert (executor.state, executor.error) == (ExecutorState.UNLOADED, None)
    load(executor)


def test_a_load_that_fails_while_it_is_reloaded_leaves_it_unloaded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, replace = make("tests.fakes.models:Absent"), ProcessExecutor.replace

    def failed_meanwhile(self: ProcessExecutor, model: ModelSettings) -> None:
        wait_until(lambda: executor.is_out)
        replace(self, model)

    monkeypatch.setattr(ProcessExecutor, "replace", failed_meanwhile)
    executor.load()
    executor.replace(PUPPET)
    assert (executor.state, executor.error) == (ExecutorState.UNLOADED, None)
    load(executor)


def test_its_spare_leaves_with_it(make: Make) -> None:
    executor = make(spare=True)
    load(executor)
    spare = wait_until(lambda: executor.spare.pid, what="the spare is loaded")
    unload(executor)
    assert not alive(spare)


@pytest.mark.parametrize("loading", [False, True])
def test_a_stop_ends_it_unloaded_or_loading(make: Make, *, loading: bool) -> None:
    executor = make("tests.fakes.models:LoadsSlowly", options={"load_ms": 60_000})
    if loading:
        executor.load()
        wait_until(lambda: executor.pid is not None, what="it loads")
    stopping = threading.Thread(target=executor.stop, args=(LONG_S,))
    stopping.start()
    stopping.join(LONG_S)
    assert executor.state is ExecutorState.STOPPED
    executor.load()
    assert executor.state is ExecutorState.STOPPED
