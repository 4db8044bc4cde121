"""Payloads in shared memory: who reads them, and that nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from batching.blobs import local_files
from batching.blobs.local_files import PAYLOAD_AT, LocalFiles, remove_unused

VALUE = os.urandom(100_000)
DIGEST = sha256(VALUE).hexdigest()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[LocalFiles]:
    made = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    assert made.open()
    yield made
    made.close()
    assert not list(tmp_path.iterdir())


def put(files: LocalFiles, name: str = "request-1", ttl_s: float = 60.0) -> bool:
    return files.put(name, DIGEST, VALUE, ttl_s)


def payloads(files: LocalFiles) -> set[str]:
    return {each.name for each in files.path.iterdir() if not each.name.startswith(".")}


def test_another_process_of_the_installation_reads_it(files: LocalFiles, tmp_path: Path) -> None:
    assert put(files)
    other = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    assert other.open()
    payload = other.get("request-1", DIGEST, len(VALUE))
    assert payload is not None
    assert len(payload) == len(VALUE)
    # Whoever has it open goes on reading it.
    files.release(["request-1", "request-2"])
    assert bytes(payload) == VALUE
    assert other.get("request-1", DIGEST, len(VALUE)) is None
    other.close()


def test_another_installation_does_not_see_it(files: LocalFiles, tmp_path: Path) -> None:
    assert put(files)
    other = LocalFiles("redis://b", 1 << 20, parent=tmp_path)
    assert other.open()
    assert other.get("request-1", DIGEST, len(VALUE)) is None
    other.close()


def test_what_is_not_as_the_message_says_is_not_read(files: LocalFiles) -> None:
    assert put(files)
    assert files.get("request-1", sha256(b"other").hexdigest(), len(VALUE)) is None
    assert files.get("request-1", DIGEST, len(VALUE) - 1) is None
    os.truncate(files.path / "request-1", PAYLOAD_AT + 10)
    assert files.get("request-1", DIGEST, len(VALUE)) is None
    (files.path / "link-to-it").symlink_to("/etc/hostname")
    os.mkfifo(files.path / "a-pipe")
    for name in ("link-to-it", "a-pipe"):
        assert files.get(name, DIGEST, len(VALUE)) is None
        files.release([name])


def test_a_payload_of_any_size_is_read_as_it_was_written(files: LocalFiles) -> None:
    for size in (1, 63, 4095, 4096, 4097, 70_000):
        value = os.urandom(size)
        assert files.put(f"request-{size}", sha256(value).hexdigest(), memoryview(value), 60.0)
        payload = files.get(f"request-{size}", sha256(value).hexdigest(), size)
        assert payload is not None
        assert bytes(payload) == value


def test_sent_again_it_is_there_already(files: LocalFiles) -> None:
    assert put(files)
    assert put(files)
    assert payloads(files) == {"request-1"}


def test_it_is_gone_when_its_time_is_over(files: LocalFiles) -> None:
    assert put(files, "request-1", ttl_s=-1.0)
    assert put(files, "request-2")
    files.sweep(at_once=True)
    assert payloads(files) == {"request-2"}


def test_one_that_is_being_written_is_not_swept(files: LocalFiles) -> None:
    (files.path / "request-1").write_bytes(b"so far")
    files.sweep(at_once=True)
    assert payloads(files) == {"request-1"}
    os.utime(files.path / "request-1", (at := time.time() - 120, at))
    files.sweep(at_once=True)
    assert not payloads(files)


def test_the_files_have_a_limit_over_all_processes(files: LocalFiles, tmp_path: Path) -> None:
    other = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    assert other.open()
    written = [put((files, other)[n % 2], f"request-{n}") for n in range(14)]
    files._counted_at = other._counted_at = -1.0
    assert not put(files, "one-more")
    assert 8 <= sum(written) <= 14
    files.release([f"request-{n}" for n in range(14)])
    files._counted_at = -1.0
    assert put(files, "one-more")
    other.close()


def test_half_of_a_small_file_system_stays_free(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        f_blocks, f_bavail, f_frsize = 64, 64, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    assert put(files, "request-1")
    assert not put(files, "request-2")


def test_no_room_leaves_no_part_of_a_file(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, value: object, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert not put(files)
    assert not payloads(files)


def test_a_limit_of_nothing_turns_it_off(tmp_path: Path) -> None:
    files = LocalFiles("redis://a", 0, parent=tmp_path)
    assert not files.open()
    assert not put(files)
    assert files.get("request-1", DIGEST, len(VALUE)) is None
    files.sweep(at_once=True)
    files.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "remove_unused", lambda parent: None)
    files = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    files.path.mkdir(0o755)
    files.path.chmod(0o755)
    assert not files.open()
    files.path.rmdir()
    (tmp_path / "elsewhere").mkdir()
    files.path.symlink_to(tmp_path / "elsewhere")
    assert not files.open()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_shared_memory_everything_goes_through_redis(tmp_path: Path) -> None:
    files = LocalFiles("redis://a", 1 << 20, parent=tmp_path / "none")
    assert not files.open()
    assert not put(files)
    files.close()


def test_a_folder_that_was_removed_is_made_anew(files: LocalFiles) -> None:
    assert put(files)
    for each in files.path.iterdir():
        each.unlink()
    files.path.rmdir()
    assert not put(files, "request-2")
    assert put(files, "request-3")
    assert payloads(files) == {"request-3"}


def test_a_frontend_knows_whether_all_workers_see_the_folder(files: LocalFiles, tmp_path: Path) -> None:
    worker = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    assert worker.open("w-1")
    assert files.seen_by(["w-1"]) == 1
    assert files.seen_by(["w-1", "on-another-machine"]) == 1
    files.sweep(at_once=True)
    assert files.seen_by(["w-1"]) == 1
    worker.close()
    assert files.seen_by(["w-1"]) == 0


def test_a_process_that_is_gone_is_not_counted_on_for_ever(files: LocalFiles, tmp_path: Path) -> None:
    worker = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    assert worker.open("w-1")
    (mark,) = (each for each in files.path.iterdir() if each.name.endswith("w-1"))
    os.utime(mark, (at := time.time() - 120, at))
    worker.sweep(at_once=True)
    # It beats.
    files.sweep(at_once=True)
    assert files.seen_by(["w-1"]) == 1
    os.utime(mark, (at, at))
    files.sweep(at_once=True)
    assert files.seen_by(["w-1"]) == 0
    worker.close()


def test_a_payload_is_found_by_its_name(files: LocalFiles) -> None:
    assert put(files)
    found = files.find("request-1")
    assert found is not None
    assert (found[0], bytes(found[1])) == (DIGEST, VALUE)
    assert files.find("request-2") is None
    (files.path / "request-3").write_bytes(b"short")
    assert files.find("request-3") is None


HOLD = """
import sys
from pathlib import Path
from batching.blobs.local_files import LocalFiles
files = LocalFiles(sys.argv[2], 1 << 20, parent=Path(sys.argv[1]))
assert files.open("w")
assert files.put("request-9", "0" * 64, b"x" * 50_000, 600.0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_processes_that_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    held = [
        subprocess.Popen([*command, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in ("redis://a", "redis://a", "redis://b")
    ]
    try:
        for each in held:
            assert each.stdout
            assert each.stdout.readline() == b"ready\n"
        first, second, other = held
        first.kill()
        first.wait()
        remove_unused(tmp_path)
        # The second one of the installation is alive.
        assert len(list(tmp_path.iterdir())) == 2
        second.kill()
        second.wait()
        remove_unused(tmp_path)
        (left,) = tmp_path.iterdir()
        assert (left / "request-9").exists()
        other.kill()
        other.wait()
        # The next start of anything, of whatever installation.
        files = LocalFiles("redis://c", 1 << 20, parent=tmp_path)
        assert files.open()
        assert list(tmp_path.iterdir()) == [files.path]
        files.close()
        assert not list(tmp_path.iterdir())
    finally:
        for each in held:
            each.kill()
            each.communicate()


def test_a_start_survives_the_removal_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between finding the folder and holding its lock, somebody has found it unused."""
    files = LocalFiles("redis://a", 1 << 20, parent=tmp_path)
    real, raced = os.open, []

    def open_(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == local_files._LOCK and len(raced) < 2:
            raced.append(path)
            remove_unused(tmp_path)
        return real(path, flags, mode, dir_fd=dir_fd)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "open", open_)
    assert files.open()
    assert len(raced) == 2
    assert put(files)
    files.close()
