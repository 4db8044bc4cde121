"""Executors with real child processes, stopped when their test is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batching.executor import ExecutorState, Lost
from batching.request import Done, Ok, Work
from config.settings import ModelSettings
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

LONG_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., ProcessExecutor]
# Options of the executor itself, not settings of its model.
OWN = ("machine", "max_output_bytes", "on_change", "on_loaded", "on_replaced")


@pytest.fixture
def build() -> Iterator[Start]:
    made: list[ProcessExecutor] = []

    def make(
        source: str = "tests.fakes.models:Puppet",
        **settings: Any,
    ) -> ProcessExecutor:
        own = {key: settings.pop(key) for key in OWN if key in settings}
        made.append(ProcessExecutor(ModelSettings(name="m", source=source, cache=False, **settings), 0, **own))
        return made[-1]

    yield make
    for executor in made:
        stop(executor)


@pytest.fixture
def start(build: Start) -> Start:
    def make(*args: Any, **settings: Any) -> ProcessExecutor:
        executor = build(*args, **settings)
        executor.start()
        assert executor.wait_ready(LONG_S), executor.error
        return executor

    return make


def stop(executor: ProcessExecutor) -> None:
    """Stop at once, and wait for the end, for which `stop` itself waits for two seconds at most."""
    executor.stop(0.0)
    wait_until(lambda: executor.state is ExecutorState.STOPPED, what="it is stopped")


def work(batch_id: str, *inputs: Any) -> Work:
    return Work(batch_id, [msgspec.json.encode(each) for each in inputs], [b"{}"] * len(inputs))


def run(executor: ProcessExecutor, *inputs: Any) -> list[Any]:
    """The decoded outputs of the inputs."""
    executor.send(work("only", *inputs))
    done = executor.receive(LONG_S)
    assert isinstance(done, Done), done
    return [json.loads(each.output) if isinstance(each, Ok) else each for each in done.outcomes]


def lost(executor: ProcessExecutor) -> Lost:
    event = executor.receive(LONG_S)
    assert isinstance(event, Lost), event
    return event
