"""Files in shared memory that are written anew for other payloads: never one that somebody still looks at."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from batching.blobs import local_files as module
from batching.blobs.local_files import PAYLOAD_AT, LocalFiles, LocalPayload
from batching.blobs.spare_files import LEAST_BYTES, PREFIX, SPARE_S
from workers.executor.segments import Opened, Place
from workers.executor.shared_bytes import MappedSegments

MIB = LEAST_BYTES
DIGEST = "0" * 64


@pytest.fixture
def files(tmp_path: Path) -> Iterator[LocalFiles]:
    files = LocalFiles("redis://a", 16 * MIB, parent=tmp_path)
    assert files.open()
    yield files
    files.close()


def spare(files: LocalFiles) -> list[int]:
    """The inodes of spare files."""
    return [each.stat().st_ino for each in files.path.iterdir() if each.name.startswith(PREFIX)]


def put(files: LocalFiles, name: str, value: bytes) -> int:
    """Write a payload; returns its inode."""
    assert files.put(name, DIGEST, value, 60.0)
    return (files.path / name).stat().st_ino


def test_the_next_payload_gets_the_pages_of_one_that_is_gone(files: LocalFiles) -> None:
    first = put(files, "request-1", b"a" * MIB)
    files.release(["request-1"])
    assert spare(files) == [first]
    assert files.used_bytes() == 0
    assert files.get("request-1", DIGEST, MIB) is None
    assert put(files, "request-2", b"b" * (2 * MIB)) == first
    assert not spare(files)
    payload = files.get("request-2", DIGEST, 2 * MIB)
    assert payload is not None
    assert bytes(payload) == b"b" * (2 * MIB)


def test_it_has_nothing_of_what_was_there_before(files: LocalFiles) -> None:
    put(files, "request-1", b"secret" * MIB)
    files.release(["request-1"])
    put(files, "request-2", b"b" * MIB)
    assert (files.path / "request-2").read_bytes()[PAYLOAD_AT:] == b"b" * MIB
    assert b"secret" not in (files.path / "request-2").read_bytes()


def test_one_that_is_being_written_is_no_other_payloads(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write, inodes = module._write, []

    def released_meanwhile(descriptor: int, value: bytes) -> None:
        if len(inodes) < 1:
            inodes.append(os.fstat(descriptor).st_ino)
            files.release(["request-1"])
            inodes.append(put(files, "request-2", b"b" * MIB))
        write(descriptor, value)

    monkeypatch.setattr(module, "_write", released_meanwhile)
    files.put("request-1", DIGEST, b"a" * MIB, 60.0)
    assert len(set(inodes)) == 2
    assert (files.path / "request-2").read_bytes()[PAYLOAD_AT:] == b"b" * MIB


def test_small_ones_are_deleted(files: LocalFiles) -> None:
    put(files, "request-1", b"a" * (MIB - PAYLOAD_AT - 1))
    files.release(["request-1"])
    assert not spare(files)


def held_by(payload: LocalPayload, how: str) -> Any:
    """The open payload of an executor, as it comes to it; the worker's own is closed."""
    number, opened = os.dup(payload.descriptor), Opened(1, PAYLOAD_AT + len(payload), kept=False)
    (value,) = MappedSegments().take([Place(0, 1, PAYLOAD_AT, len(payload))], [opened], [number])
    if how == "array":
        return np.frombuffer(value.view, np.uint8)[5:]
    return value.private() if how == "private" else value.view if how == "view" else value


@pytest.mark.parametrize("how", ["value", "view", "private", "array"])
def test_what_somebody_looks_at_is_left_alone(files: LocalFiles, how: str) -> None:
    first = put(files, "request-1", b"a" * MIB)
    payload = files.get("request-1", DIGEST, MIB)
    assert payload is not None
    held = held_by(payload, how)
    del payload
    files.release(["request-1"])
    assert put(files, "request-2", b"b" * MIB) != first
    assert bytes(held[:3]) == b"aaa" if how != "value" else bytes(held) == b"a" * MIB
    del held
    assert put(files, "request-3", b"c" * MIB) == first


def test_whoever_maps_a_file_holds_it_without_its_descriptor(files: LocalFiles) -> None:
    first = put(files, "request-1", b"a" * MIB)
    payload = files.get("request-1", DIGEST, MIB)
    assert payload is not None
    mapping = mmap.mmap(payload.descriptor, MIB, prot=mmap.PROT_READ, offset=PAYLOAD_AT)
    del payload
    files.release(["request-1"])
    assert put(files, "request-2", b"b" * MIB) != first
    assert mapping[:1] == b"a"
    mapping.close()


def test_they_are_few_and_go_by_themselves(files: LocalFiles) -> None:
    for n in range(12):
        put(files, f"request-{n}", b"a" * MIB)
    files.release([f"request-{n}" for n in range(12)])
    assert 0 < len(spare(files)) <= 8
    files.sweep(at_once=True)
    assert spare(files)
    for each in files.path.iterdir():
        if each.name.startswith(PREFIX):
            os.utime(each, (0, each.stat().st_mtime - SPARE_S - 1))
    files.sweep(at_once=True)
    assert not spare(files)


def test_they_make_room(files: LocalFiles) -> None:
    for n in range(6):
        put(files, f"request-{n}", b"a" * MIB)
    files.release([f"request-{n}" for n in range(6)])
    assert spare(files)
    # None can grow so much beside the others.
    put(files, "large", b"b" * (15 * MIB))
    assert files.used_bytes() <= 16 * MIB


class Readers(RuleBasedStateMachine):
    """Two processes' views of one folder, and readers of it: whatever they have seen stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.files = [LocalFiles("redis://a", 12 * MIB, parent=Path(self.folder.name)) for _ in range(2)]
        assert all(each.open() for each in self.files)
        self.written: dict[str, bytes] = {}
        self.read: list[tuple[Any, bytes]] = []
        self.count = 0

    @rule(by=st.integers(0, 1), size=st.sampled_from([MIB, MIB + 1, 2 * MIB, 10]))
    def put(self, by: int, size: int) -> None:
        self.count += 1
        value = self.count.to_bytes(2, "big") * (size // 2)
        if self.files[by].put(f"request-{self.count}", DIGEST, value, 60.0):
            self.written[f"request-{self.count}"] = value

    @rule(by=st.integers(0, 1), pick=st.randoms(use_true_random=False), mapped=st.booleans())
    def get(self, by: int, pick: Any, mapped: bool) -> None:
        if self.written:
            name, value = pick.choice(sorted(self.written.items()))
            payload = self.files[by].get(name, DIGEST, len(value))
            assert payload is not None
            self.read.append((held_by(payload, "view") if mapped else payload, value))

    @rule(by=st.integers(0, 1), pick=st.randoms(use_true_random=False))
    def release(self, by: int, pick: Any) -> None:
        if self.written:
            name = pick.choice(sorted(self.written))
            value = self.written.pop(name)
            self.files[by].release([name])
            assert self.files[by].get(name, DIGEST, len(value)) is None

    @rule()
    def forget(self) -> None:
        self.read[:2] = []

    @invariant()
    def all_is_as_it_was(self) -> None:
        for held, value in self.read:
            assert bytes(held) == value

    def teardown(self) -> None:
        self.read.clear()
        for each in self.files:
            each.close()
        assert not list(Path(self.folder.name).iterdir())
        self.folder.cleanup()


TestReaders = Readers.TestCase
TestReaders.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
