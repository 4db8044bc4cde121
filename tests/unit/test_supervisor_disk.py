"""`up` on a full disk: it goes on, says so once, and says when it is over."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from cli.supervisor import disk
from cli.supervisor.disk import Disk, required_room
from cli.supervisor.errors import FolderFull
from cli.supervisor.log_files import LogTail, rotate
from cli.supervisor.screen import Lasting


class Room:
    """A disk whose free bytes a test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 30
        self.told: list[str] = []
        self.disk = Disk(folder, self.told.append)
        self._now = 0.0
        monkeypatch.setattr(disk, "_free_bytes", lambda _: self.free)

    def look(self) -> list[str]:
        self._now += 10.0
        self.disk.look(self._now)
        return self.told


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    return Room(tmp_path, monkeypatch)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_write_that_fails_is_told_once_and_so_is_its_end(room: Room, number: int) -> None:
    for _ in range(5):
        assert not room.disk.write(lambda: fail(number))
        assert len(room.look()) == 1
    assert os.strerror(number) in room.told[0]
    assert room.disk.write(lambda: None)
    for _ in range(5):
        assert len(room.look()) == 2
    assert "again" in room.told[1]


def test_a_disk_is_full_before_anything_is_written_to_it(room: Room) -> None:
    assert room.look() == []
    room.free = 100
    assert len(room.look()) == 1
    # Neither full nor with room: nothing new.
    room.free = 200_000
    assert len(room.look()) == 1
    room.free = 1 << 30
    assert len(room.look()) == 2


def test_nothing_is_started_without_room(tmp_path: Path, room: Room) -> None:
    room.free = 100
    with pytest.raises(FolderFull, match=f"^{tmp_path / 'var'} is full"), required_room(tmp_path / "var"):
        pytest.fail("it was started")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_start_that_finds_no_room_says_where(tmp_path: Path, room: Room, number: int) -> None:
    with pytest.raises(FolderFull) as failed, required_room(tmp_path):
        fail(number)
    assert str(tmp_path) in str(failed.value)
    assert os.strerror(number) in str(failed.value)


def test_another_fault_of_a_start_keeps_its_own_words(tmp_path: Path, room: Room) -> None:
    with pytest.raises(OSError, match="Read-only"), required_room(tmp_path):
        fail(errno.EROFS)


def test_what_is_no_failure_to_write_is_not_hidden(room: Room) -> None:
    with pytest.raises(ValueError, match="a mistake"):
        room.disk.write(lambda: (_ for _ in ()).throw(ValueError("a mistake")))


def test_a_log_that_cannot_be_copied_is_cut_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker1.log"
    path.write_text("INFO much\n" * 100)
    monkeypatch.setattr("cli.supervisor.log_files.MAX_BYTES", 500)
    monkeypatch.setattr("cli.supervisor.log_files.shutil.copyfile", lambda *_: fail(errno.ENOSPC))
    LogTail(path).alarms()
    assert path.read_text() == ""
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_that_cannot_be_renamed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web.log").write_text("before")
    monkeypatch.setattr(Path, "replace", lambda *_: fail(errno.ENOSPC))
    rotate(tmp_path / "web.log")
    assert (tmp_path / "web.log").read_text() == "before"


class _Filling(io.RawIOBase):
    """Takes nothing while `full`."""

    def __init__(self) -> None:
        self.full = False
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self.full:
            fail(errno.ENOSPC)
        self.taken += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def test_a_screen_on_a_disk_that_was_full_shows_again(tmp_path: Path) -> None:
    raw = _Filling()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
    screen = Lasting(stream)
    for full, text in ((False, "before\n"), (True, "x" * 100_000 + "\n"), (False, "after\n")):
        raw.full = full
        screen.write(text)
        screen.flush()
    assert raw.taken.startswith(b"before\n")
    assert raw.taken.endswith(b"after\n")
