"""`logs`: lines by time, none twice, none lost when a file is cut or set aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands import cli
from cli.run.logs import LogFile, in_order
from cli.supervisor.log_files import rotate


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUNCH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BUNCH_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "web.log").write_text("2026-01-01 10:00:02,000 INFO web: two\n")
    (folder / "worker1.log").write_text("2026-01-01 10:00:01,000 INFO worker: one\nprinted by a model\n")
    (folder / "worker2.log").write_text('{"time":"2026-01-01T10:00:03.000","level":"INFO","message":"three"}\n')
    (folder / "valkey.log").write_text("9:M 01 Jan 2026 10:00:00.500 * zero\n")
    return folder


def shown(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, ["logs", *arguments])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_all_roles_by_time(logged: Path) -> None:
    assert [line.split(" | ")[0].strip() for line in shown()] == ["valkey", "worker1", "worker1", "web", "worker2"]


def test_one_role_or_one_process(logged: Path) -> None:
    assert [line.split(" | ")[0].strip() for line in shown("worker")] == ["worker1", "worker1", "worker2"]
    assert shown("worker1")[-1] == "printed by a model"
    assert shown("redis") == ["9:M 01 Jan 2026 10:00:00.500 * zero"]
    assert shown("worker1", "-n", "1") == ["printed by a model"]


def test_a_role_that_is_not_there_is_wrong_usage(logged: Path) -> None:
    done = CliRunner().invoke(cli, ["logs", "wbe"])
    assert done.exit_code == 2
    assert "worker1" in done.output


def test_nothing_there_says_who_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNCH_STATE_DIR", str(tmp_path / "elsewhere"))
    done = CliRunner().invoke(cli, ["logs"])
    assert done.exit_code == 1
    assert "manage.py up" in done.output


def test_what_a_model_prints_steers_no_terminal(logged: Path) -> None:
    (logged / "worker1.log").write_text("\x1b[2Jgone\n")
    assert shown("worker1") == ["�[2Jgone"]


@pytest.mark.parametrize("how", ["cut", "set aside"])
def test_following_goes_on_over_a_new_beginning(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nhal")
    file = LogFile(path)
    assert list(file.lines()) == ["one", "two"]
    with path.open("a") as out:
        out.write("f\nlast\n")
    if how == "cut":
        path.with_name("a.log.1").write_text(path.read_text())
        path.write_text("")
        with path.open("r+") as out:
            out.write("new\n")
    else:
        rotate(path)
        path.write_text("new\n")
    assert list(file.lines()) == ["half", "last", "new"]
    assert list(file.lines()) == []


def test_lines_without_a_time_stay_with_their_record() -> None:
    lines = {"a": ["2026-01-01 10:00:00,000 x", "    of a"], "b": ["2026-01-01 10:00:00,500 y"]}
    assert [line for _, line in in_order(lines)] == [
        "2026-01-01 10:00:00,000 x",
        "    of a",
        "2026-01-01 10:00:00,500 y",
    ]
