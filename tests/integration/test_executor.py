"""The executor with real child processes: deaths, hangs, floods, and what must not leak either way."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from batching.executor import Cause, ExecutorGone, ExecutorState
from batching.request import Done, Failed, Ok, Rejected
from config.process.devices import Placement
from config.settings import ModelSettings
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, run, work
from tests.processes import alive
from tests.waiting import wait_until
from workers.executor.process import ChildProcess
from workers.executor.process_executor import FIRST_BACKOFF_S

# Fixtures.
build, start = executors.build, executors.start


def test_prints_of_the_model_stay_out_of_the_protocol(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    executor = start()
    assert run(executor, {"do": "print", "text": "hello from the model"}, "next") == ["printed", "next"]
    captured = capfd.readouterr()
    assert captured.out.count("hello from the model") == 2
    assert captured.err.count("hello from the model") == 1


def test_a_model_that_takes_more_memory_than_it_may_fails_at_that_input_alone(start: Start) -> None:
    executor = start(max_memory_bytes=400_000_000)
    pid = run(executor, {"do": "pid"})
    first, greedy, last = run(executor, "first", {"do": "gorge", "bytes": 32_000_000}, "last")
    assert (first, last) == ("first", "last")
    assert isinstance(greedy, Failed)
    assert greedy.message == "MemoryError"
    assert greedy.retryable
    assert run(executor, {"do": "pid"}) == pid


def test_a_memory_limit_that_cannot_be_set_is_why_the_model_does_not_start(build: Start) -> None:
    executor = build(max_memory_bytes=2**64 - 1)
    executor.start()
    wait_until(lambda: executor.state is ExecutorState.FAILED)
    assert "setrlimit" in str(executor.error)


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="Linux's own")
def test_the_kernel_is_to_kill_the_model_before_anything_else(start: Start) -> None:
    assert run(start(), {"do": "oom score"})[0] > int(Path("/proc/self/oom_score_adj").read_text())


def test_the_child_imports_only_what_it_needs(start: Start) -> None:
    modules = set(run(start(), {"do": "modules"})[0])
    assert "workers.executor.main" in modules
    assert (
        not {"celery", "kombu", "redis", "torch", "flask", "httpx", "numpy", "workers.executor.process_executor"}
        & modules
    )


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ({"do": "exit", "status": 3}, "exited with status 3"),
        ({"do": "exit", "status": 0}, "exited with status 0"),
        ({"do": "signal", "name": "SIGSEGV"}, "was killed by SIGSEGV"),
        ({"do": "signal", "name": "SIGKILL"}, "was killed by SIGKILL"),
    ],
)
def test_the_reason_of_a_death_names_status_or_signal(
    start: Start, death: dict[str, Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = start()
    executor.send(work("a", death))
    event = lost(executor)
    assert (event.inside, event.waiting) == ("a", ())
    assert reason in event.reason
    assert executor.wait_ready(LONG_S)
    assert executor.restarts == 1


def test_a_hung_batch_is_killed_and_the_next_child_works(start: Start, tmp_path: Path) -> None:
    executor = start(timeout_ms=1500)
    first = executor.pid
    began = time.monotonic()
    executor.send(work("hung", {"do": "hold", "path": str(tmp_path / "never")}))
    executor.send(work("behind", 1))
    event = lost(executor)
    assert time.monotonic() - began >= 1.5
    assert (event.inside, event.waiting) == ("hung", ("behind",))
    assert event.cause is Cause.TIMEOUT
    assert "longer than timeout_ms = 1500" in event.reason
    assert executor.wait_ready(LONG_S)
    assert first is not None
    assert not alive(first)
    assert run(executor, "again") == ["again"]


def test_the_time_of_a_batch_counts_from_when_it_is_in_front(start: Start) -> None:
    """Two batches sent together, each well within its time, both together far over it."""
    # Both by more than two seconds, for which a machine may stand still.
    executor = start("workers.models.simulated:Simulated", options={"batch_ms": 3000, "item_ms": 0}, timeout_ms=5500)
    executor.send(work("a", 1))
    executor.send(work("b", 2))
    for batch_id in "ab":
        done = executor.receive(LONG_S)
        assert isinstance(done, Done)
        assert done.batch_id == batch_id
        assert done.compute_s >= 3.0


def test_a_batch_may_take_a_multiple_of_what_batches_take(start: Start, tmp_path: Path) -> None:
    executor = start(timeout_ms=600_000, timeout_factor=3)
    assert run(executor, 1) == [1]
    executor.send(work("hung", {"do": "hold", "path": str(tmp_path / "never")}))
    event = lost(executor)
    assert event.cause is Cause.TIMEOUT
    assert "timeout_factor = 3 times the usual time of a batch" in event.reason
    assert executor.wait_ready(LONG_S)
    # Until another batch has come through, nothing is known.
    assert executor._time_left(stopping=False) == 600.0
    assert run(executor, "again") == ["again"]
    assert executor._time_left(stopping=False) < 600.0


def test_it_sleeps_no_longer_than_the_batch_in_front_has_left(build: Start) -> None:
    executor = build(timeout_ms=1000)
    assert executor._time_left(stopping=False) == 1.0
    executor._handed.give("a", 1, time.monotonic() - 0.4)
    assert executor._time_left(stopping=False) <= 0.6


def test_idle_time_does_not_count(start: Start) -> None:
    # Long enough for a batch on any machine.
    executor = start(timeout_ms=1500)
    time.sleep(1.6)
    assert run(executor, 1) == [1]
    assert executor.restarts == 0


def test_batches_larger_than_any_buffer(start: Start) -> None:
    executor = start(timeout_ms=60_000)
    texts = [chr(97 + n % 26) * 100_000 for n in range(64)]
    for batch_id in "ab":
        executor.send(work(batch_id, *texts))
    for batch_id in "ab":
        done = executor.receive(LONG_S)
        assert isinstance(done, Done)
        assert done.batch_id == batch_id
        assert [json.loads(each.output) for each in done.outcomes if isinstance(each, Ok)] == texts


def test_a_large_batch_is_handed_over_while_the_model_computes(start: Start, tmp_path: Path) -> None:
    executor = start()
    gate = tmp_path / "gate"
    executor.send(work("first", {"do": "hold", "path": str(gate)}))
    wait_until(gate.with_suffix(".begun").exists)
    executor.send(work("large", "x" * 20_000_000))
    gate.touch()
    events = [executor.receive(LONG_S) for _ in range(2)]
    assert [event.batch_id for event in events if isinstance(event, Done)] == ["first", "large"]


def test_a_blocked_send_ends_when_the_child_is_killed(start: Start, tmp_path: Path) -> None:
    # Longer than it takes from the first batch to the second.
    executor = start(timeout_ms=2500)
    gate = tmp_path / "never"
    executor.send(work("hung", {"do": "hold", "path": str(gate)}))
    wait_until(gate.with_suffix(".begun").exists)
    assert executor.pid
    # Stopped as a whole: its other thread would read on.
    os.kill(executor.pid, signal.SIGSTOP)
    with pytest.raises(ExecutorGone):
        executor.send(work("huge", *["x" * 30_000] * 800))
    event = lost(executor)
    # The child never had all of it: its sender was told, and nobody else.
    assert (event.inside, event.waiting) == ("hung", ())
    assert executor.receive(0.0) is None


@pytest.mark.parametrize("do", ["leave child", "fork"])
def test_what_the_model_started_neither_hides_its_death_nor_outlives_it(start: Start, tmp_path: Path, do: str) -> None:
    executor = start(timeout_ms=60_000)
    told = tmp_path / "pid"
    executor.send(work("a", {"do": do, "path": str(told)}))
    assert "exited with status 4" in lost(executor).reason
    wait_until(lambda: not alive(int(told.read_text())))
    assert executor.wait_ready(LONG_S)


PARENT = """
import subprocess
from pathlib import Path

class Parent:
    def load(self, device):
        started = subprocess.Popen(["sleep", "600"])
        Path(__file__).with_suffix(".pid").write_text(str(started.pid))

    def predict(self, inputs, parameters):
        return inputs
"""


def test_what_the_model_started_dies_with_it_even_if_somebody_else_has_waited_for_it(tmp_path: Path) -> None:
    (tmp_path / "parent_model.py").write_text(PARENT)
    model = ModelSettings(name="parent", source="parent_model:Parent")
    process = ChildProcess(model, "parent/0", Placement("cpu"), str(tmp_path))
    try:
        assert process.await_ready(LONG_S, None)
        os.kill(process.pid, signal.SIGKILL)
        # As gevent does, in a process that it has patched.
        process._process.wait()
        assert "SIGKILL" in process.bury().reason
        wait_until(lambda: not alive(int((tmp_path / "parent_model.pid").read_text())))
    finally:
        process.bury()
        process.close()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_stop_signals_are_left_to_the_parent(start: Start, name: str) -> None:
    executor = start()
    assert run(executor, {"do": "signal", "name": name}, "next") == ["survived", "next"]


def test_a_model_that_calls_sys_exit_fails_its_batch_only(start: Start) -> None:
    executor = start()
    (failed,) = run(executor, {"do": "sys.exit"})
    assert isinstance(failed, Failed)
    assert "SystemExit: the model wants out" in failed.message
    assert run(executor, "next") == ["next"]


def test_a_function_gets_strings_only_and_others_are_refused_one_by_one(start: Start) -> None:
    executor = start("workers.models.shout:batchstring")
    good, number, nothing, other = run(executor, "one", 2, None, "four")
    assert (good, other) == ("ONE", "FOUR")
    for refused in (number, nothing):
        assert isinstance(refused, Rejected)
        assert refused.exc_type == "InvalidInput"
    refused_all = run(executor, 2)
    assert isinstance(refused_all[0], Rejected)


def test_a_batch_that_succeeds_ends_the_back_off(start: Start) -> None:
    executor = start()
    for _ in range(3):
        executor.send(work("a", {"do": "exit", "status": 1}))
        lost(executor)
        assert executor.wait_ready(LONG_S)
    assert executor._backoff_s >= FIRST_BACKOFF_S * 8
    run(executor, {"do": "raise", "text": "no success"})
    assert executor._backoff_s >= FIRST_BACKOFF_S * 8
    run(executor, "fine")
    assert executor._backoff_s == FIRST_BACKOFF_S


def test_what_it_tells_about_its_health(build: Start) -> None:
    changes: list[ExecutorState] = []
    executor = build(on_change=lambda: changes.append(executor.state))
    executor.start()
    assert executor.wait_ready(LONG_S)
    assert executor.name == "m/0"
    assert run(executor, {"do": "pid"}) == [executor.pid]
    assert (executor.batches, executor.restarts) == (1, 0)
    run(executor, {"do": "raise", "text": "odd"})
    assert executor.batches == 2
    assert executor.busy_s > 0
    pid = executor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    lost(executor)
    assert executor.wait_ready(LONG_S)
    assert executor.restarts == 1
    executor.stop(LONG_S)
    assert executor.pid is None
    ready, starting = ExecutorState.READY, ExecutorState.STARTING
    assert changes == [ready, starting, ready, ExecutorState.STOPPED]


def test_what_the_kernel_kills_for_want_of_memory_is_said_to_be_so(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 7
    monkeypatch.setattr("workers.executor.process.oom_kills", lambda: kills)
    executor = start()
    executor.send(work("a", {"do": "signal", "name": "SIGKILL"}))
    assert lost(executor).reason.endswith("was killed by SIGKILL")
    assert executor.wait_ready(LONG_S)
    kills = 8
    executor.send(work("b", {"do": "signal", "name": "SIGKILL"}))
    assert lost(executor).reason.endswith("was killed by SIGKILL, and the kernel's OOM killer was active at that time")


def test_a_failing_on_change_harms_nothing(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("listener")

    executor = start(on_change=fail)
    assert run(executor, 1) == [1]
    # An answer may be read by another thread than the one that tells of changes.
    wait_until(lambda: "a listener failed" in caplog.text, what="its listener has failed")


def test_no_process_is_left_after_a_stop(start: Start) -> None:
    executor = start()
    pid = executor.pid
    assert pid is not None
    executor.stop(LONG_S)
    assert not alive(pid)
    assert not any(thread.name == "executor m/0" for thread in threading.enumerate())


def test_a_stop_while_starting_does_not_wait_for_the_model(build: Start) -> None:
    executor = build("tests.fakes.models:LoadsForever")
    executor.start()
    wait_until(lambda: executor.pid is not None)
    pid = executor.pid
    assert pid is not None
    executor.stop(LONG_S)
    assert executor.state is ExecutorState.STOPPED
    assert not alive(pid)


def test_descriptors_do_not_leak_over_restarts(start: Start) -> None:
    executor = start()

    def die() -> None:
        executor.send(work("a", {"do": "exit", "status": 1}))
        lost(executor)
        assert executor.wait_ready(LONG_S)
        run(executor, "reset the back-off")

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    die()
    before = opened()
    for _ in range(3):
        die()
    # Those of the last one are closed by another thread than the one that has read its answer.
    wait_until(lambda: opened() <= before, what="the descriptors of those that ended are closed")


def test_the_child_logs_at_the_level_of_its_parent(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    try:
        executor = start("tests.fakes.models:Talkative")
    finally:
        root.setLevel(before)
    run(executor, 1)
    err = capfd.readouterr().err
    assert "heard" in err
    assert "too quiet" not in err
