"""Processes that a model forks: their signals are their own, and they never serve."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from batching.request import Done, Ok, Work
from config.settings import ModelSettings
from workers.executor.process_executor import ProcessExecutor


def _terminated(value: Any) -> Any:
    """The exit code of a `multiprocessing` child that is asked to end."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join(30)
    return process.exitcode


def _interrupted(value: Any) -> Any:
    reading, writing = os.pipe()
    copy = os.fork()
    if not copy:
        os.write(writing, b"!")
        # Again and again: Python acts on a signal between two calls, and one that comes just before a call does not
        # interrupt it.
        while True:
            time.sleep(0.01)
    os.read(reading, 1)
    os.kill(copy, signal.SIGINT)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def _pooled(value: Any) -> Any:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


def _copied(end: Callable[[], Any]) -> Callable[[Any], Any]:
    def act(value: Any) -> Any:
        copy = os.fork()
        if not copy:
            return end()
        return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])

    return act


def _raise(error: BaseException) -> Any:
    raise error


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "terminated": _terminated,
    "interrupted": _interrupted,
    "pooled": _pooled,
    "raises": _copied(lambda: _raise(ValueError("in the copy"))),
    "exits": _copied(lambda: sys.exit(7)),
    "exits with words": _copied(lambda: sys.exit("no more to do")),
    "returns": _copied(lambda: "an answer that nobody asked for"),
}


class Forking:
    """Answers `[action, its outcome, this process]`."""

    def __init__(self, in_load: str = "") -> None:
        self._in_load = in_load

    def load(self, device: str) -> None:
        if self._in_load:
            ACTIONS[self._in_load](None)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [[each, ACTIONS[each](each) if each in ACTIONS else None, os.getpid()] for each in inputs]


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Iterator[ProcessExecutor]:
    options = {"in_load": getattr(request, "param", "")}
    model = ModelSettings(name="m", source=f"{__name__}:Forking", options=options, cache=False, timeout_ms=60_000)
    made = ProcessExecutor(model, 0)
    made.start()
    try:
        assert made.wait_ready(60), made.error
        yield made
    finally:
        made.stop(1.0)


def ask(executor: ProcessExecutor, *values: str) -> list[Any]:
    executor.send(Work("b", [msgspec.json.encode(each) for each in values], [b"{}"] * len(values)))
    done = executor.receive(60)
    assert isinstance(done, Done), done
    return [msgspec.json.decode(each.output) if isinstance(each, Ok) else each for each in done.outcomes]


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("terminated", -signal.SIGTERM),
        ("pooled", [1, 2]),
        ("raises", 1),
        ("exits", 7),
        ("exits with words", 1),
        ("returns", 0),
    ],
)
def test_a_copy_ends_as_it_would_by_itself(executor: ProcessExecutor, action: str, outcome: Any) -> None:
    pid = executor.pid
    assert ask(executor, action, "still there") == [[action, outcome, pid], ["still there", None, pid]]
    assert ask(executor, "and goes on") == [["and goes on", None, pid]]


def test_ctrl_c_reaches_a_copy(executor: ProcessExecutor) -> None:
    ((_, status, _),) = ask(executor, "interrupted")
    assert status != 0


@pytest.mark.parametrize("executor", ["raises", "exits", "returns"], indirect=True)
def test_a_copy_made_while_loading_does_not_report_for_its_parent(executor: ProcessExecutor) -> None:
    assert ask(executor, "x") == [["x", None, executor.pid]]
