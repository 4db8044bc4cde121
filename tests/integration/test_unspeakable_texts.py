"""Texts that no encoding has, from a model: lone surrogates, as a decoder with `surrogateescape` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from batching.request import Done, Failed, Ok, Rejected, Work
from bunch import InputRejected, InvalidInput, TransientError
from config.settings import ModelSettings
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

HALF = "half \ud83d of it"
ESCAPED = "half \\ud83d of it"


class _Shows(Exception):
    def __str__(self) -> str:
        return HALF


class Unspeakable:
    version = HALF

    def __init__(self, in_load: bool = False) -> None:
        self._in_load = in_load

    def load(self, device: str) -> None:
        if self._in_load:
            raise RuntimeError(HALF)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        print(HALF, flush=True)
        if "all" in inputs:
            raise TransientError(HALF)
        made: dict[str, Any] = {
            "rejected": InputRejected(HALF),
            "invalid": InvalidInput(HALF),
            "failed": ValueError(HALF),
            "shown": _Shows(),
            "text": HALF,
            "key": {HALF: 1},
            "deep": [{"a": [HALF]}],
        }
        return [made.get(each, each) for each in inputs]


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Iterator[ProcessExecutor]:
    options = {"in_load": getattr(request, "param", False)}
    made = ProcessExecutor(ModelSettings(name="m", source=f"{__name__}:Unspeakable", options=options, cache=False), 0)
    made.start()
    try:
        yield made
    finally:
        made.stop(1.0)


def ask(executor: ProcessExecutor, *values: str) -> list[Any]:
    assert executor.wait_ready(60), executor.error
    executor.send(Work("b", [msgspec.json.encode(each) for each in values], [b"{}"] * len(values)))
    done = executor.receive(60)
    assert isinstance(done, Done), done
    return list(done.outcomes)


def test_each_is_its_own_inputs_error_with_the_text_escaped(executor: ProcessExecutor) -> None:
    refused, invalid, failed, shown, *outputs, fine = ask(
        executor, "rejected", "invalid", "failed", "shown", "text", "key", "deep", "fine"
    )
    assert refused == Rejected(ESCAPED, "InputRejected")
    assert invalid == Rejected(ESCAPED, "InvalidInput")
    for each in (failed, shown):
        assert isinstance(each, Failed)
        assert ESCAPED in each.message
    for each in outputs:
        assert isinstance(each, Failed)
        assert "not JSON" in each.message
    assert fine == Ok(b'"fine"')
    assert executor.restarts == 0


def test_a_whole_call_that_says_so_costs_no_executor(executor: ProcessExecutor) -> None:
    outcomes = ask(executor, "all", "others")
    assert all(ESCAPED in each.message and ESCAPED in each.traceback for each in outcomes)
    assert ask(executor, "fine") == [Ok(b'"fine"')]


def test_a_version_is_told_escaped(executor: ProcessExecutor) -> None:
    assert executor.wait_ready(60), executor.error
    assert executor.version == ESCAPED


@pytest.mark.parametrize("executor", [True], indirect=True)
def test_a_model_that_does_not_load_says_why(executor: ProcessExecutor) -> None:
    wait_until(lambda: executor.error, what="it has failed")
    assert ESCAPED in (executor.error or "")
    msgspec.json.encode(executor.error)
