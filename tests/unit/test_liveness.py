"""Beats: who lives, who stands still, and that what a dead process left counts for nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tasks.fleet import liveness
from tasks.fleet.liveness import Beat, Liveness, beats
from tests.waiting import PATIENCE_S


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch):
    """`now.at` is the clock of both sides."""

    class Clock:
        at = 1000.0

        def monotonic(self) -> float:
            return self.at

    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


def test_a_process_that_beats_is_seen_and_one_that_stopped_is_not(
    tmp_path: Path, now, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its next beat, which would be at the new time, does not come.
    monkeypatch.setattr(liveness, "BEAT_EVERY_S", 3600.0)
    each = Liveness(tmp_path, "worker")
    each.start()
    now.at += 3
    assert beats(tmp_path, "worker") == [Beat(os.getpid(), 3.0)]
    assert beats(tmp_path, "web") == []
    each.stop()
    each.stop()
    assert beats(tmp_path, "worker") == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "health" / "web-77"
    left.parent.mkdir()
    left.write_text("12.000")
    assert beats(tmp_path, "web") == []
    assert not left.exists()


def test_a_process_whose_work_stands_still_does_not_beat(tmp_path: Path, now, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "BEAT_EVERY_S", 0.001)
    asked = []
    each = Liveness(tmp_path, "worker", works=lambda: bool(asked.append(1)))
    each.start()
    while len(asked) < 3:
        pass
    now.at += 50
    assert beats(tmp_path, "worker")[0].silent_s == 50
    each.stop()


def test_a_beat_that_is_under_way_at_the_stop_goes_into_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_EVERY_S", 0.001)
    under_way, goes_on, done = threading.Event(), threading.Event(), threading.Event()
    written_to: list[str] = []

    def pwrite(descriptor: int, data: bytes, at: int) -> None:
        under_way.set()
        goes_on.wait(PATIENCE_S)
        written_to.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        done.set()

    each = Liveness(tmp_path, "ops")
    each.start()
    monkeypatch.setattr(liveness.os, "pwrite", pwrite)
    assert under_way.wait(PATIENCE_S)
    stopping = threading.Thread(target=each.stop)
    stopping.start()
    # Not before the beat, or else at once.
    stopping.join(0.1)
    with (tmp_path / "another").open("w"):
        goes_on.set()
        assert done.wait(PATIENCE_S)
    stopping.join(PATIENCE_S)
    assert str(tmp_path / "another") not in written_to
    assert beats(tmp_path, "ops") == []


def test_without_a_folder_the_process_goes_on(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("in the way")
    each = Liveness(tmp_path, "ops")
    each.start()
    each.stop()
    assert beats(tmp_path, "ops") == []


def test_the_file_is_its_users_alone(tmp_path: Path) -> None:
    each = Liveness(tmp_path, "ops")
    each.start()
    (file,) = (tmp_path / "health").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    each.stop()
