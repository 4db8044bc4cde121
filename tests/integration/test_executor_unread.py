"""An executor whose collector is busy: its answers lie unread for a while, and are judged rightly all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from batching.executor import Cause, ExecutorState, Lost
from batching.request import Done, Ok
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, work
from tests.waiting import wait_until
from workers.executor import process
from workers.executor.ipc import FrameReader, ToParent, encode
from workers.executor.process import ChildProcess

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


class Writing:
    """A child whose answer is longer than its socket holds: it writes on as somebody reads."""

    gone = has_ended = False

    def __init__(self) -> None:
        self._sock, self._theirs = socket.socketpair()
        self._reader = FrameReader(self._sock, ToParent)
        self._left = memoryview(encode(Done("a", 0.1, [Ok(b"x" * 3000)])))

    def write(self, size: int) -> None:
        self._theirs.sendall(self._left[:size])
        self._left = self._left[size:]

    @property
    def part_bytes(self) -> int:
        return self._reader.part_bytes

    def messages(self, *, once: bool = False) -> Iterator[Any]:
        return self._reader.available(once=once)

    def close(self) -> None:
        self._sock.close()
        self._theirs.close()


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_answer_that_is_being_written_is_in_time(build: Start, goes_on: bool) -> None:
    executor = build(timeout_ms=1000)
    with contextlib.closing(Writing()) as child:
        executor._answers.serve(cast("ChildProcess", child))
        executor._handed.give("a", 1, 0.0)
        for number in range(3):
            if goes_on or not number:
                child.write(1000)
            death = executor._judged(cast("ChildProcess", child), 10.0 + 2 * number)
            if number and not goes_on:
                assert death is not None
                assert death.cause is Cause.TIMEOUT
                return
            assert death is None
        child.write(5000)
        assert executor._judged(cast("ChildProcess", child), 16.0) is None
    assert isinstance(executor.receive(0.0), Done)


def test_a_batch_that_was_sent_under_a_longer_limit_has_that_of_now(start: Start, tmp_path: Path) -> None:
    executor = start(timeout_ms=600_000, timeout_factor=3)
    executor.send(work("a", {"do": "hold", "path": str(tmp_path / "go")}))
    executor.send(work("b", {"do": "hold", "path": str(tmp_path / "never")}))
    (tmp_path / "go").touch()
    assert isinstance(executor.receive(LONG_S), Done)
    event = executor.receive(60.0)
    assert isinstance(event, Lost)
    assert (event.inside, event.cause) == ("b", Cause.TIMEOUT)


def test_a_death_that_the_system_does_not_tell_of_is_noticed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_open_pidfd", lambda pid: None)
    executor = start(timeout_ms=600_000)
    executor.send(work("a", {"do": "exit", "status": 3}))
    wait_until(lambda: executor.restarts == 1)
    assert lost(executor).inside == "a"
