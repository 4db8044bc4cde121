"""The lines of a child's log that a person is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.supervisor import log_files
from cli.supervisor.log_files import LogTail, rotate


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00,000 WARNING tasks.client.router: reconnecting",
        "2026-01-01 10:00:00,000 CRITICAL celery.worker: gone",
        "[2026-01-01 10:00:00,000: ERROR/MainProcess] consumer: Cannot connect",
        "[2026-01-01 10:00:00 +0000] [17] [WARNING] Worker exiting",
        "[W 260101 10:00:00 inspector:98] Inspect method stats failed",
        "17:M 01 Jan 2026 10:00:00.000 # Out Of Memory",
        '{"time":"2026-01-01T10:00:00","level":"ERROR","message":"no"}',
        "Traceback (most recent call last):",
    ],
)
def test_warnings_and_worse_are_shown(tmp_path: Path, line: str) -> None:
    assert _alarms(tmp_path, line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00,000 INFO    tasks.client.router: the word ERRORS is not a level",
        "[2026-01-01 10:00:00,000: INFO/MainProcess] worker1@host ready.",
        "[I 260101 10:00:00 command:26] 15 detected, shutting down",
        "17:M 01 Jan 2026 10:00:00.000 * Ready to accept connections",
        '{"time":"2026-01-01T10:00:00","level":"INFO","message":"yes"}',
    ],
)
def test_the_rest_is_not(tmp_path: Path, line: str) -> None:
    assert _alarms(tmp_path, line) == []


def test_a_record_is_shown_with_its_traceback_and_no_further(tmp_path: Path) -> None:
    record = [
        "2026-01-01 10:00:00 ERROR   a: failed",
        "Traceback (most recent call last):",
        '  File "x.py"',
        "KeyError",
    ]
    after = "2026-01-01 10:00:01 INFO    a: again"

    assert _alarms(tmp_path, *record, after) == record


def test_each_line_is_seen_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    tail = LogTail(path)
    assert tail.alarms() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"x ERROR one\nx ERROR tw")
        assert tail.alarms() == ["x ERROR one"]
        file.write(b"o\n")
        assert tail.alarms() == ["x ERROR two"]
    assert tail.alarms() == []
    assert tail.last(1) == ["x ERROR two"]


def test_a_file_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_BYTES", 100)
    path = tmp_path / "a.log"
    tail = LogTail(path)
    with path.open("ab", buffering=0) as file:
        file.write(b"x ERROR old\n" * 20)
        tail.alarms()
        file.write(b"x ERROR new\n")
        assert tail.alarms() == ["x ERROR new"]
    assert path.read_bytes() == b"x ERROR new\n"
    assert path.with_name("a.log.1").read_bytes() == b"x ERROR old\n" * 20


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before")
    rotate(path)
    assert not path.exists()
    assert path.with_name("a.log.1").read_text() == "before"


def _alarms(folder: Path, *lines: str) -> list[str]:
    path = folder / "a.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return LogTail(path).alarms()


def test_what_never_ends_its_line_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "worker1.log"
    tail = LogTail(path)
    for _ in range(20):
        with path.open("ab") as file:
            file.write(b"." * 5_000 + b"\r" + b"WARNING: " + b"x" * 20_000)
        assert tail.alarms()
        assert len(vars(tail)["_rest"]) <= log_files._LONGEST_LINE
