"""An executor whose collector is busy: its answers lie unread for a while, and are judged rightly all the same."""

from __future__ import annotations

import os
import signal
import threading
import time

from batching.executor import Cause, ExecutorState
from batching.request import Done
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, work
from tests.waiting import wait_until

# Fixtures.
build, start = executors.build, executors.start


def test_an_answer_that_nobody_has_read_is_in_time(start: Start) -> None:
    executor = start(timeout_ms=1000)
    executor.send(work("a", 1))
    executor.send(work("b", 2))
    # The supervisor looks after a second, and reads what has come.
    wait_until(lambda: executor.batches == 2)
    time.sleep(1.2)
    assert executor.state is ExecutorState.READY
    for batch_id in "ab":
        done = executor.receive(LONG_S)
        assert isinstance(done, Done)
        assert done.batch_id == batch_id
    assert executor.restarts == 0


def test_a_death_is_noticed_and_comes_after_the_answers_before_it(start: Start) -> None:
    executor = start()
    executor.send(work("a", 1))
    executor.send(work("b", {"do": "exit", "status": 3}))
    wait_until(lambda: executor.restarts == 1)
    done = executor.receive(LONG_S)
    assert isinstance(done, Done)
    assert done.batch_id == "a"
    event = lost(executor)
    assert (event.inside, event.cause) == ("b", Cause.EXIT)


def test_a_hung_batch_is_noticed(start: Start) -> None:
    executor = start(timeout_ms=500)
    executor.send(work("a", {"do": "signal", "name": "SIGSTOP"}))
    wait_until(lambda: executor.restarts == 1)
    event = lost(executor)
    assert (event.inside, event.cause) == ("a", Cause.TIMEOUT)


def test_who_waits_is_woken_by_a_death_an_interrupt_and_the_next_child(start: Start) -> None:
    executor = start()
    events: list[object] = []

    def collect() -> None:
        for _ in range(3):
            events.append(executor.receive(LONG_S))  # noqa: PERF401 - they are waited for one by one

    collector = threading.Thread(target=collect)
    collector.start()
    executor.interrupt()
    wait_until(lambda: len(events) == 1)
    assert executor.pid is not None
    executor.send(work("a", {"do": "signal", "name": "SIGSTOP"}))
    os.kill(executor.pid, signal.SIGKILL)
    wait_until(lambda: len(events) == 2)
    assert executor.wait_ready(LONG_S)
    executor.send(work("b", 2))
    collector.join(LONG_S)
    assert events[0] is None
    assert isinstance(events[2], Done)
    assert events[2].batch_id == "b"
