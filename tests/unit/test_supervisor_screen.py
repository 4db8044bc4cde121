"""The screen of `up`: each thing once, and of a long record its beginning and its end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.supervisor.backoff import Backoff
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.screen import Screen, shortened
from cli.supervisor.supervised_process import ProcessSpec, State, SupervisedProcess


@pytest.fixture
def child(tmp_path: Path) -> SupervisedProcess:
    spec = ProcessSpec(
        name="worker1",
        role="worker",
        command=("true",),
        environment={},
        log_file=tmp_path / "worker1.log",
        start_stage=1,
        stop_stage=1,
        stop_timeout_s=1.0,
    )
    return SupervisedProcess(spec, Reaper(), Backoff())


@pytest.fixture
def shown(child: SupervisedProcess) -> Callable[..., list[str]]:
    """`shown(state, detail)` is all that was said so far."""
    stream = io.StringIO()
    screen = Screen(stream)

    def look(state: State = State.STARTING, detail: str = "") -> list[str]:
        child.state, child.detail = state, detail
        screen.show([child])
        return stream.getvalue().splitlines()

    return look


def test_what_changes_back_and_forth_is_said_once(shown) -> None:
    for _ in range(3):
        shown(detail="loading a")
        said = shown(detail="a did not start")
    assert said == ["worker1: starting (loading a)", "worker1: starting (a did not start)"]


def test_a_new_life_is_told_anew(shown) -> None:
    shown(State.RUNNING)
    shown(State.RESTARTING, "exited with 1")
    shown(State.STARTING)
    shown(State.RUNNING)
    assert [line.split(": ")[1] for line in shown(State.RESTARTING, "exited with 1")] == [
        "running",
        "restarting (exited with 1)",
        "starting",
        "running",
        "restarting (exited with 1)",
    ]


def test_of_a_long_record_the_message_at_its_end_is_shown(shown, child: SupervisedProcess) -> None:
    lines = [f"    line {n}" for n in range(200)]
    record = ["2026-01-01 10:00:00,000 ERROR x: Traceback", *lines, "    ValueError: why"]
    child.log.path.write_text("".join(f"{line}\n" for line in record))
    said = shown()
    assert said[0].endswith("Traceback")
    assert "worker1 |     ValueError: why" in said
    assert any("more lines in" in line for line in said)
    assert len(said) < 30


@pytest.mark.parametrize("count", [0, 1, 20, 21, 22, 500])
def test_nothing_is_left_out_for_the_sake_of_one_line(count: int) -> None:
    lines = [str(n) for n in range(count)]
    kept = shortened(lines, Path("x.log"))
    assert len(kept) <= 21
    assert kept == lines or (kept[0], kept[-1]) == (lines[0], lines[-1])
