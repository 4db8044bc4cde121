"""The files that `up --reload` looks at, and the moment at which a change counts as finished."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.run.reloading import models_of
from cli.supervisor.source_files import Settled, Snapshot, changed, snapshot
from config.settings import load_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("bunch.toml", "model.py", "lib/more.py", "schema.json"):
        write(tmp_path / name)
    return tmp_path


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in snapshot(folder, folder / "var")}


def test_modules_schemas_and_settings_are_looked_at(folder: Path) -> None:
    write(folder / "weights.bin")
    assert names(folder) == {"bunch.toml", "model.py", "lib/more.py", "schema.json"}


@pytest.mark.parametrize(
    "ignored", ["var/up.json", ".git/x.py", "__pycache__/x.py", "node_modules/x.json", "env/lib/x.py"]
)
def test_what_is_no_source_is_not_looked_at(folder: Path, ignored: str) -> None:
    before = names(folder)
    write(folder / "env" / "pyvenv.cfg")
    write(folder / ignored)
    assert names(folder) == before


def test_a_file_that_is_written_added_or_removed_has_changed(folder: Path) -> None:
    before = snapshot(folder, folder / "var")
    write(folder / "model.py", "changed")
    write(folder / "new.py")
    (folder / "lib" / "more.py").unlink()
    (folder / "nowhere.py").symlink_to(folder / "gone.py")
    after = snapshot(folder, folder / "var")
    assert [path.name for path in changed(before, after)] == ["more.py", "model.py", "new.py"]


def test_a_file_of_the_same_size_has_changed_with_its_time(folder: Path) -> None:
    before = snapshot(folder, folder / "var")
    os.utime(folder / "model.py", ns=(1, 1))
    assert [path.name for path in changed(before, snapshot(folder, folder / "var"))] == ["model.py"]


def test_changes_are_told_once_when_nothing_changes_any_more() -> None:
    a, b = Path("a.py"), Path("b.py")
    looks: list[Snapshot] = [{}, {a: (1, 1)}, {a: (1, 1), b: (1, 1)}, {a: (1, 1), b: (1, 1)}, {a: (1, 1), b: (1, 1)}]
    settled = Settled(iter(looks).__next__)
    assert [settled.changes() for _ in range(4)] == [[], [], [a, b], []]


def test_models_of_the_folder_are_reloaded_and_no_others(folder: Path) -> None:
    sources = {"mine": "model:M", "nested": "lib.more:M", "shipped": "workers.models.echo:Echo", "url": "https://h/x"}
    text = "".join(f'[models.{name}]\nsource = "{source}"\n' for name, source in sources.items())
    write(folder / "bunch.toml", text)
    settings = load_settings({}, str(folder / "bunch.toml"))
    assert models_of(settings, folder) == ["mine", "nested"]
