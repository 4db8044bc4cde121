"""A warm spare: a second process with the model loaded, which serves as soon as the first one has ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batching.executor import Cause, ExecutorState
from batching.request import Done
from tests.integration import executors
from tests.integration.executors import Start, lost, run, work
from tests.processes import alive
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

# Fixtures.
build, start = executors.build, executors.start

SLOW_TO_LOAD = {"source": "workers.models.simulated:Simulated", "options": {"load_ms": 1500, "batch_ms": 0}}


def spare_of(executor: ProcessExecutor) -> int:
    wait_until(lambda: executor.spare.pid is not None, what="the spare is loaded")
    assert executor.spare.pid is not None
    return executor.spare.pid


def without_service_s(executor: ProcessExecutor) -> float:
    """Kill the process, and measure until the next answer."""
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    began = time.monotonic()
    assert lost(executor).cause is Cause.EXIT
    assert executor.wait_ready(30)
    run(executor, "next")
    return time.monotonic() - began


def test_the_time_without_service_is_a_fraction_of_a_load(start: Start) -> None:
    loads: list[float] = []
    replaced: list[Cause] = []
    cold = start(**SLOW_TO_LOAD)
    warm = start(**SLOW_TO_LOAD, spare=True, on_loaded=loads.append, on_replaced=replaced.append)
    cold_s = without_service_s(cold)
    following = [spare_of(warm)]

    def is_a_fraction() -> bool:
        took_s = without_service_s(warm)
        assert warm.pid == following[-1]
        following.append(spare_of(warm))
        return took_s * 5 < cold_s

    # A death that takes as long as a load is one of three at most: while the machine stood still.
    assert any(is_a_fraction() for _ in range(3))
    deaths = len(following) - 1
    assert replaced == [Cause.EXIT] * deaths
    assert warm.restarts == deaths
    assert len({*following, warm.pid}) == deaths + 1
    # A spare is there just before its load is told.
    wait_until(lambda: len(loads) >= deaths + 2, what="all loads are told")
    assert len(loads) == deaths + 2, "each load is told once, and no change of place is one"


def test_each_death_is_followed_by_a_spare(start: Start) -> None:
    executor = start(spare=True)
    for _ in range(3):
        following = spare_of(executor)
        executor.send(work("a", {"do": "signal", "name": "SIGSEGV"}))
        assert lost(executor).inside == "a"
        assert executor.wait_ready(30)
        assert run(executor, "next") == ["next"]
        assert executor.pid == following


def test_a_process_that_dies_before_its_spare_is_loaded_waits_for_that_load_alone(start: Start) -> None:
    executor = start(**SLOW_TO_LOAD, spare=True)
    # The spare is being loaded: a start of another process would begin from nothing.
    wait_until(lambda: executor.spare.wait_s() < 3600, what="the spare is being started")
    assert executor.spare.pid is None
    assert without_service_s(executor) > 0
    assert executor.restarts == 1


def test_a_spare_that_dies_is_replaced_and_nobody_else_notices(start: Start) -> None:
    executor = start(spare=True)
    serving, first = executor.pid, spare_of(executor)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: executor.spare.pid not in (None, first), what="another spare is loaded")
    assert run(executor, "still here") == ["still here"]
    assert (executor.pid, executor.restarts, executor.state) == (serving, 0, ExecutorState.READY)


def test_a_reload_does_not_serve_the_old_settings(start: Start) -> None:
    executor = start(spare=True, source="tests.fakes.models:Puppet")
    old = spare_of(executor)
    target = msgspec.structs.replace(executor.loaded, version="2")  # type: ignore[type-var]
    executor.replace(target)
    wait_until(lambda: executor.loaded is target, what="it has been reloaded")
    assert executor.pid != old
    assert not alive(old)
    assert spare_of(executor) not in (old, executor.pid)


@pytest.mark.parametrize("settings", [{"spare": True}, {}])
def test_the_end_of_an_executor_is_the_end_of_its_spare(start: Start, settings: dict[str, Any]) -> None:
    executor = start(**settings)
    spare = spare_of(executor) if settings else None
    executors.stop(executor)
    assert executor.spare.pid is None
    if spare:
        wait_until(lambda: not alive(spare), what="the spare has ended")


def test_a_stop_ends_the_spare_first_and_then_only_waits_for_the_batch(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = start(spare=True)
    spare, gate = spare_of(executor), tmp_path / "gate"
    executor.send(work("held", {"do": "hold", "path": str(gate)}))
    wait_until(gate.with_suffix(".begun").exists, what="the batch has begun")
    turns: list[float] = []
    wait_s = executor.spare.wait_s
    monkeypatch.setattr(executor.spare, "wait_s", lambda: turns.append(0) or wait_s())
    stop = threading.Thread(target=executor.stop, args=(executors.LONG_S,))
    stop.start()
    try:
        wait_until(lambda: not alive(spare), what="the spare has ended")
    finally:
        gate.touch()
        stop.join()
    assert isinstance(executor.receive(0), Done)
    # Whoever asks a spare that is no longer looked after when to look after it, asks again and again.
    assert len(turns) <= 1


def test_the_kernels_earlier_kills_say_nothing_about_the_end_of_a_spare_that_serves(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 7
    monkeypatch.setattr("workers.executor.process.oom_kills", lambda: kills)
    executor = start(spare=True)
    spare = spare_of(executor)
    kills = 8
    causes = []
    for _ in range(2):
        executor.send(work("a", {"do": "signal", "name": "SIGKILL"}))
        causes.append(lost(executor).cause)
        assert executor.wait_ready(executors.LONG_S)
        if len(causes) == 1:
            assert executor.pid == spare
    assert causes == [Cause.MEMORY, Cause.EXIT]
