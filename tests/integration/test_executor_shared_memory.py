"""Large inputs and outputs with real child processes: what is used, and what is left of it after any death."""

from __future__ import annotations

import gc
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from batching.executor import Cause, ExecutorState
from batching.request import Done
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, run, work
from tests.waiting import wait_until
from workers.executor.ipc import LARGE_BYTES
from workers.executor.process_executor import ProcessExecutor

# Fixtures.
build, start = executors.build, executors.start

LARGE = "x" * (2 * LARGE_BYTES)


def segments(pid: int | str) -> int:
    """The number of descriptors of segments in a process."""
    gc.collect()
    return sum("bunch-batch" in _target(each) for each in Path(f"/proc/{pid}/fd").iterdir())


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def numbers(executor: ProcessExecutor) -> int:
    """How many segments its batches have needed."""
    assert executor._child is not None
    return executor._child._writer._segments._numbers


def test_large_inputs_and_outputs_travel_in_memory_that_is_used_again(start: Start) -> None:
    executor = start()
    for n in range(5):
        assert run(executor, LARGE + str(n), "small", n) == [LARGE + str(n), "small", n]
    assert numbers(executor) == 1
    # Its own, and that of the child's outputs.
    assert segments("self") == 2


@pytest.mark.parametrize("how", ["killed", "exits", "hangs", "replaced", "condemned"])
def test_nothing_is_left_of_a_child_however_it_ends(start: Start, tmp_path: Path, how: str) -> None:
    executor = start(timeout_ms=400 if how == "hangs" else 60_000)
    assert run(executor, LARGE) == [LARGE]
    before, pid = segments("self"), executor.pid
    assert before == 2
    if how == "replaced":
        executor.replace(executor._model)
    elif how == "condemned":
        executor.condemn("it is told to")
    elif how == "exits":
        executor.send(work("a", LARGE, {"do": "exit", "status": 1}))
    else:
        executor.send(work("a", LARGE, {"do": "hold", "path": str(tmp_path / "never")}))
        wait_until((tmp_path / "never.begun").exists)
        # Sent and not looked at: the descriptor may be on its way.
        executor.send(work("b", LARGE, LARGE))
        if how == "killed":
            os.kill(pid or 0, signal.SIGKILL)
    if how != "replaced":
        causes = {"hangs": Cause.TIMEOUT, "condemned": Cause.DEVICE}
        assert lost(executor).cause is causes.get(how, Cause.EXIT)
    wait_until(lambda: executor.pid not in {None, pid} and executor.state is ExecutorState.READY)
    wait_until(lambda: segments("self") == 0)
    assert run(executor, LARGE) == [LARGE]


def test_a_process_that_runs_out_of_descriptors_is_replaced_and_loses_no_batch(start: Start) -> None:
    executor = start("tests.fakes.models:Hoarder")
    assert run(executor, "take all descriptors") == [0]
    executor.send(work("a", LARGE))
    event = lost(executor)
    assert event.inside == "a"
    assert executor.wait_ready(LONG_S)
    assert run(executor, LARGE) == [len(LARGE)]


def test_a_worker_without_descriptors_goes_on_with_the_socket(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    executor = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    held: list[Any] = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    try:
        executor.send(work("a", LARGE))
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(executor.receive(LONG_S), Done)
    assert "goes through the socket" in caplog.text


def test_a_model_may_run_a_large_batch_in_parts(start: Start) -> None:
    """The halves see the inputs as they came, whatever the whole has done to them."""
    executor = start()
    good, bad, other = run(executor, [LARGE], {"do": "raise", "text": LARGE}, [LARGE])
    assert (good, other) == ([LARGE], [LARGE])
    assert not isinstance(bad, str)


def test_programs_that_a_model_starts_inherit_no_segment(start: Start) -> None:
    executor = start()
    assert run(executor, LARGE) == [LARGE]
    pid = executor.pid
    assert pid
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if "bunch-batch" in _target(each):
            flags = int(Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().split("flags:\t")[1].split()[0], 8)
            assert flags & os.O_CLOEXEC
