"""An executor whose model has `prepare` and `finish`: which batches are in question when its process ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batching.executor import Cause, Lost
from batching.request import Done, Failed, Ok, Work
from tests.integration import executors
from tests.integration.executors import Start, lost, run, work
from tests.waiting import wait_until
from workers.executor.process_executor import ProcessExecutor

# Fixtures.
build, start = executors.build, executors.start

STAGES = "tests.fakes.shaped_models:Stages"


def at(stage: str, act: str, **about: Any) -> dict[str, Any]:
    return {"in": stage, "do": act, **about}


def hold_two(executor: ProcessExecutor, tmp_path: Path, **about: Any) -> None:
    """Make the first batch hang in `predict`, with a second one prepared behind it."""
    executor.send(Work("a", [msgspec.json.encode(at("predict", "hang"))], [b"{}"], **about))
    executor.send(work("b", at("prepare", "mark", path=str(tmp_path / "prepared"))))


@pytest.mark.parametrize("stage", ["prepare", "predict", "finish"])
def test_an_exception_in_any_stage_fails_its_input_alone(start: Start, stage: str) -> None:
    one, culprit, three = run(start(STAGES), 1, at(stage, "fail"), 3)
    assert (one, three) == (1, 3)
    assert isinstance(culprit, Failed)
    assert f"in {stage}" in culprit.message


def test_both_batches_are_in_question_when_the_process_ends(start: Start, tmp_path: Path) -> None:
    executor = start(STAGES)
    hold_two(executor, tmp_path)
    executor.send(work("c", 1))
    wait_until((tmp_path / "prepared").exists)
    assert executor.pid is not None
    # Prepared in turn: `b` waits for `predict`.
    os.kill(executor.pid, signal.SIGKILL)
    event = lost(executor)
    assert (event.inside, event.beside, event.waiting) == ("a", ("b",), ("c",))


def test_a_process_that_dies_while_it_prepares_puts_both_in_question(start: Start) -> None:
    executor = start(STAGES)
    executor.send(work("a", at("predict", "hang")))
    executor.send(work("b", at("prepare", "die")))
    event = lost(executor)
    assert (event.inside, event.beside, event.cause) == ("a", ("b",), Cause.EXIT)


def test_a_batch_that_takes_too_long_is_the_front_one_alone(start: Start, tmp_path: Path) -> None:
    executor = start(STAGES, timeout_ms=3000)
    hold_two(executor, tmp_path)
    event = lost(executor)
    assert (event.inside, event.beside, event.waiting, event.cause) == ("a", (), ("b",), Cause.TIMEOUT)
    assert (tmp_path / "prepared").exists()


def test_nothing_begins_beside_a_suspect(start: Start, tmp_path: Path) -> None:
    executor = start(STAGES, timeout_ms=1500)
    hold_two(executor, tmp_path, suspect=True)
    event = lost(executor)
    assert (event.inside, event.beside, event.waiting) == ("a", (), ("b",))
    assert not (tmp_path / "prepared").exists()


def test_batches_are_answered_in_their_order(start: Start) -> None:
    executor = start(STAGES)
    for n in range(20):
        executor.send(work(f"batch {n}", n, at("finish", "fail") if n % 3 == 0 else -n))
    events = [executor.receive(30) for _ in range(20)]
    for n, event in enumerate(events):
        assert isinstance(event, Done), event if isinstance(event, Lost) else None
        assert event.batch_id == f"batch {n}"
        assert event.outcomes[0] == Ok(b"%d" % n)
