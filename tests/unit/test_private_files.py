"""A state folder is its user's alone; what does not belong to Bunch is not touched."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.secrets.private_files import make_private, restrict_umask, tighten, touch_private, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    each = tmp_path / "state"
    each.mkdir(mode=0o755)
    return each


def test_what_is_written_cannot_be_read_by_others(folder: Path) -> None:
    (folder / "up.json").write_text("before")
    (folder / "up.json").chmod(0o644)
    write_private(folder / "up.json", b"{}")
    touch_private(folder / "bunch.db")
    make_private(folder / "log")
    assert [mode(folder / name) for name in ("up.json", "bunch.db", "log")] == [0o600, 0o600, 0o700]
    assert (folder / "up.json").read_bytes() == b"{}"


def test_a_file_that_is_there_keeps_what_it_holds(folder: Path) -> None:
    (folder / "bunch.db").write_bytes(b"keys")
    touch_private(folder / "bunch.db")
    touch_private(folder / "no" / "such" / "folder")
    assert (folder / "bunch.db").read_bytes() == b"keys"


def test_a_folder_of_an_earlier_version_is_tightened_to_its_depths(folder: Path, tmp_path: Path) -> None:
    deep = folder / "valkey" / "appendonlydir"
    deep.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a link's target is not ours")
    elsewhere.chmod(0o644)
    (folder / "flower").symlink_to(elsewhere)
    for each in (deep / "appendonly.aof.1.incr.aof", folder / "up.lock", folder / "bunch.db-wal"):
        each.touch(0o644)
    assert tighten(folder) == ""
    assert not [each for each in (folder, *folder.rglob("*")) if mode(each) & 0o077 and not each.is_symlink()]
    assert mode(elsewhere) == 0o644


@pytest.mark.parametrize("name", ["notes.txt", "bunch.toml", ".git"])
def test_what_is_not_bunchs_is_left_as_it_is(folder: Path, name: str) -> None:
    (folder / name).touch(0o755)
    (folder / "log").mkdir(mode=0o755)
    said = tighten(folder)
    assert "chmod 700" in said
    assert name in said
    assert (mode(folder), mode(folder / name), mode(folder / "log")) == (0o755, 0o755, 0o700)


def test_an_open_folder_is_none_once_it_has_been_closed_by_hand(folder: Path) -> None:
    (folder / "notes.txt").touch()
    folder.chmod(0o700)
    assert tighten(folder) == ""


def test_children_inherit_the_umask(folder: Path) -> None:
    import os

    before = os.umask(0o022)
    try:
        restrict_umask()
        (folder / "log").mkdir()
        (folder / "log" / "web.log").touch()
        assert [mode(folder / "log"), mode(folder / "log" / "web.log")] == [0o700, 0o600]
    finally:
        os.umask(before)
