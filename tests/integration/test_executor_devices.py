"""An executor and its device: a fault that outlives its batch, and what a model sees of the machine."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from batching.executor import Cause, ExecutorGone, ExecutorState
from batching.request import Done, Failed, Work
from config.process.devices import Machine
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, run, work
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

# Fixtures.
build, start = executors.build, executors.start


def poisoned(executor: ProcessExecutor, *inputs: Any, suspect: bool = False) -> None:
    raw = [msgspec.json.encode(each) for each in inputs]
    executor.send(Work("first", raw, [b"{}"] * len(raw), suspect=suspect))


def test_a_process_whose_device_failed_is_replaced_before_anybody_else_is_charged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Cause] = []
    executor = start("tests.chaos.models:Poisoned", on_replaced=told.append)
    poisoned(executor, 1, {"poison": "assert"})
    # Perhaps it is there in time to be handed over, and perhaps the process has gone by then.
    with contextlib.suppress(ExecutorGone):
        executor.send(work("behind", 2))
    event = lost(executor)
    assert (event.inside, event.cause) == ("first", Cause.DEVICE)
    assert set(event.waiting) <= {"behind"}
    assert "CUDA error" in caplog.text
    assert "CUDA error" not in event.reason
    assert executor.wait_ready(LONG_S)
    assert executor.error is None
    assert run(executor, 3) == [3]
    assert told == [Cause.DEVICE]


def test_the_culprit_that_was_alone_is_answered_and_then_the_process_is_replaced(start: Start) -> None:
    executor = start("tests.chaos.models:Poisoned")
    poisoned(executor, {"poison": "later"}, suspect=True)
    done = executor.receive(LONG_S)
    assert isinstance(done, Done)
    assert isinstance(done.outcomes[0], Failed)
    assert lost(executor).inside is None
    assert executor.wait_ready(LONG_S)
    assert executor.restarts == 1


def test_while_it_is_replaced_it_says_why(start: Start) -> None:
    seen: list[tuple[ExecutorState, str | None]] = []
    executor = start("tests.chaos.models:Poisoned", on_change=lambda: seen.append((executor.state, executor.error)))
    poisoned(executor, {"poison": "assert"}, 2)
    lost(executor)
    assert executor.wait_ready(LONG_S)
    # Whoever waits for the state may be woken before it is told.
    told = [ExecutorState.STARTING, ExecutorState.READY]
    wait_until(lambda: [state for state, _ in seen][-2:] == told, what="it has told of both")
    assert "device failed" in str(seen[-2][1])
    assert seen[-1][1] is None


def test_how_long_loading_took_is_told(start: Start) -> None:
    took: list[float] = []
    start("workers.models.simulated:Simulated", options={"load_ms": 300}, on_loaded=took.append)
    assert len(took) == 1
    assert took[0] >= 0.3


def test_an_output_over_the_limit_never_leaves_the_process(start: Start) -> None:
    executor = start(max_output_bytes=1000)
    small, huge = run(executor, "small", "x" * 5000)
    assert small == "small"
    assert isinstance(huge, Failed)
    assert "the limit is 1000" in huge.message


@pytest.mark.parametrize(
    ("device", "machine", "told"),
    [
        ("auto", Machine(), ["cpu", None]),
        ("auto", Machine(("GPU-a", "GPU-b")), ["cuda", "GPU-a"]),
        ("cuda", Machine(("3", "1")), ["cuda", "3"]),
        ("cuda:1", Machine(("GPU-a", "GPU-b")), ["cuda:1", None]),
    ],
)
def test_a_model_is_told_a_device_that_there_is_and_sees_its_own_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, device: str, machine: Machine, told: list[str | None]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = start("tests.fakes.models:Placed", device=device, machine=lambda: machine)
    assert run(executor, 1) == [told]
