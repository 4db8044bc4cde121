"""Large inputs and outputs between worker and executor: by shared memory, and what each side may do to the other."""

from __future__ import annotations

import array
import contextlib
import gc
import os
import socket
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.blobs.local_files import LocalFiles, LocalPayload
from batching.request import Done, Failed, Ok, Work
from workers.executor import ipc, segments, shared_bytes
from workers.executor.ipc import Attached, BrokenFrames, FrameReader, FrameWriter, Ready, ToChild, ToParent, encode
from workers.executor.segments import Opened, Place, SegmentReader
from workers.executor.shared_bytes import MappedSegments, SharedBytes

LARGE = ipc.LARGE_BYTES


class Way:
    """Both ends of one direction."""

    def __init__(self, kind: Any, values: Any) -> None:
        self.ours, self.theirs = socket.socketpair()
        for end in (self.ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.writer = FrameWriter(self.ours)
        self.reader = FrameReader(self.theirs, kind, values)

    def send(self, message: Any) -> Any:
        frame = self.writer.pack(message)
        assert len(frame[0]) < 100_000, "it goes through the socket"
        self.writer.send(frame)
        return self.reader.next()

    def close(self) -> None:
        self.writer.close()
        self.reader.close()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def way() -> Iterator[Way]:
    """From worker to child."""
    made = Way(ToChild, MappedSegments())
    yield made
    made.close()


@pytest.fixture
def back() -> Iterator[Way]:
    """From child to worker."""
    made = Way(ToParent, SegmentReader())
    yield made
    made.close()


def work(*inputs: bytes) -> Work:
    return Work("b", list(inputs), [b"{}"] * len(inputs))


def _open_segments() -> set[tuple[str, int]]:
    gc.collect()
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "bunch-batch" in str(each.readlink()):
                found.add((each.name, each.stat().st_ino))
    return found


_others: set[tuple[str, int]] = set()


@pytest.fixture(autouse=True)
def _of_other_tests() -> None:
    """An executor of another file may end only now."""
    _others.clear()
    _others.update(_open_segments())


def count() -> int:
    return len(_open_segments() - _others)


sizes = st.one_of(st.integers(0, 200), st.sampled_from([32_767, 32_768, 36_864, 40_000, LARGE - 1, LARGE, LARGE + 1]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(sizes, max_size=6), max_size=5))
def test_every_batch_arrives_as_it_was_sent_and_its_outputs_come_back(batches: list[list[int]]) -> None:
    way, back = Way(ToChild, MappedSegments()), Way(ToParent, SegmentReader())
    try:
        for number, batch in enumerate(batches):
            inputs = [bytes([number + n]) * size for n, size in enumerate(batch)]
            way.writer.send(way.writer.pack(work(*inputs)))
            got = way.reader.next()
            assert list(map(bytes, got.inputs)) == inputs
            outcomes = [Ok(each, b'"n":1') if each else Failed("empty") for each in inputs]
            back.writer.send(back.writer.pack(Done("b", 0.1, list(outcomes))))
            assert back.reader.next() == Done("b", 0.1, outcomes)
    finally:
        way.close()
        back.close()


def test_small_batches_go_through_the_socket(way: Way) -> None:
    assert way.writer.pack(work(b"x" * (LARGE - 1)))[1] is None
    assert way.writer.pack(work(*[b"x" * 30_000] * 10))[1] is None
    assert isinstance(way.send(work(b"x" * LARGE)).inputs[0], SharedBytes)


def test_a_segment_is_written_to_again_once_no_view_of_it_is_left(way: Way) -> None:
    kept = way.send(work(b"a" * LARGE)).inputs[0].view[5:105]
    for letter in (b"b", b"c", b"d", b"e"):
        assert bytes(way.send(work(letter * LARGE)).inputs[0]) == letter * LARGE
        assert kept == b"a" * 100
    # One that is held, and one for all others.
    assert way.writer._segments._numbers == 2
    del kept
    gc.collect()
    for letter in (b"f", b"g"):
        way.send(work(letter * LARGE))
    assert way.writer._segments._numbers == 2


def test_a_model_that_keeps_all_its_inputs_has_them_unchanged(way: Way) -> None:
    kept = [way.send(work(bytes([n]) * LARGE)).inputs[0].view for n in range(8)]
    for number, view in enumerate(kept):
        assert view == bytes([number]) * LARGE
    before = count()
    kept.clear()
    del view
    # Those of a single use are gone; each of the others is open here and there.
    assert count() < before
    assert count() <= 3 * 3


def test_a_segment_that_is_too_small_makes_way(way: Way) -> None:
    for n in range(3):
        kept = [way.send(work(bytes([n]) * LARGE)).inputs[0] for _ in range(3)]
    del kept
    for size in (2 << 20, 5 << 20):
        assert bytes(way.send(work(b"y" * size)).inputs[0]) == b"y" * size
    held = way.reader._values._kept
    assert len(held) == 3
    assert set(held) == {each.number for each in way.writer._segments._kept}


def test_a_batch_above_the_limit_is_not_kept(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_KEPT_BYTES", 1 << 20)
    got = way.send(work(b"x" * (2 << 20)))
    assert bytes(got.inputs[0]) == b"x" * (2 << 20)
    assert count()
    del got
    assert not count()


def test_a_private_view_is_the_models_own(way: Way) -> None:
    got = way.send(work(b"a" * LARGE, b"b" * LARGE))
    one = got.inputs[1]
    mine = one.private()
    mine[:3] = b"xyz"
    assert bytes(mine[:5]) == b"xyzbb"
    # Asked for again, for instance since the batch is run in halves, it is as the caller has sent it.
    assert one.view == one.private() == b"b" * LARGE
    with pytest.raises(TypeError):
        one.view[0] = 1
    # It holds the segment, since the pages that it has not written to are still the worker's.
    del got, one
    for letter in (b"c", b"d", b"e"):
        way.send(work(letter * LARGE, letter * LARGE))
    assert bytes(mine[3:]) == b"b" * (LARGE - 3)


def test_no_memory_for_a_private_view_is_an_error_of_that_input(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    one = way.send(work(b"a" * LARGE)).inputs[0]

    def full(*args: Any, **about: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shared_bytes, "_Private", full)
    with pytest.raises(MemoryError):
        one.private()


def test_inputs_can_be_compared_and_hashed(way: Way) -> None:
    one, two, other = way.send(work(b"a" * LARGE, b"a" * LARGE, b"b" * LARGE)).inputs
    assert one == two != other
    assert {one: 1}[two] == 1
    assert one != b"a" * LARGE


def test_a_forked_copy_gives_nothing_back(way: Way) -> None:
    got = way.send(work(b"a" * LARGE))
    child = os.fork()
    if child == 0:
        del got
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    way.send(work(b"b" * LARGE))
    assert bytes(got.inputs[0]) == b"a" * LARGE


@pytest.mark.parametrize("missing", ["memfd_create", "pwritev"])
def test_without_shared_memory_all_goes_through_the_socket(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    before = count()
    monkeypatch.setattr(os, missing, full)
    made = Way(ToChild, MappedSegments())
    frame = made.writer.pack(work(b"x" * LARGE))
    assert frame[1] is None
    made.writer.send(frame)
    assert made.reader.next() == work(b"x" * LARGE)
    assert count() == before
    made.close()


def test_a_system_without_memfd_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    made = Way(ToChild, MappedSegments())
    assert made.writer.pack(work(b"x" * LARGE))[1] is None
    made.close()


def test_nothing_stays_open(back: Way) -> None:
    before = count()
    made = Way(ToChild, MappedSegments())
    keep = [made.send(work(b"x" * (LARGE * n))) for n in range(1, 6)]
    del keep
    made.close()
    assert count() == before
    back.send(Done("b", 0.1, [Ok(b"x" * LARGE)]))
    back.close()
    assert count() == before


def tampered(back: Way, places: list[Place], opened: list[Opened], sent: list[int]) -> Any:
    """What the worker reads of a child that names these."""
    frame = encode(Attached(Done("b", 0.1, [Ok(b""), Failed("no")]), places, opened, []))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
    back.ours.sendmsg([frame], rights)
    return back.reader.next()


@pytest.mark.parametrize(
    "place",
    [
        Place(0, 1, 4096, 4097),
        Place(0, 1, 8192, 1),
        Place(0, 1, -4096, 4096),
        Place(0, 1, 4096, -1),
        Place(0, 1, 1 << 63, 1 << 62),
        Place(0, 2, 0, 1),
        Place(2, 1, 0, 1),
        Place(1, 1, 0, 1),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_does_not_read_what_its_child_has_not(back: Way, place: Place, kept: bool) -> None:
    memory = os.memfd_create("bunch-batch")
    os.ftruncate(memory, 8192)
    with pytest.raises(BrokenFrames):
        # It claims to be larger than it is.
        tampered(back, [place], [Opened(1, 1 << 40, kept)], [memory])
    os.close(memory)
    back.close()
    assert not count()


def test_a_worker_survives_descriptors_that_are_not_of_memory(back: Way, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BrokenFrames):
        tampered(back, [Place(0, 1, 0, 1)], [Opened(1, 1, True)], [folder])
    os.close(folder)


def test_announced_segments_must_come(back: Way) -> None:
    with pytest.raises(BrokenFrames, match="1 segments were announced, and 0 came"):
        tampered(back, [], [Opened(1, 1, True)], [])


def test_a_worker_does_not_collect_descriptors(back: Way) -> None:
    memory = os.memfd_create("bunch-batch")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory] * 60))]
    for _ in range(2):
        back.ours.sendmsg([encode(Ready(""))], rights)
        back.reader.next()
    back.ours.sendmsg([encode(Ready(""))], rights)
    with pytest.raises(BrokenFrames, match="descriptors"):
        back.reader.next()
    os.close(memory)
    back.close()
    assert not count()


def test_values_that_nobody_asked_for_are_no_message() -> None:
    made = Way(ToChild, None)
    frame = made.writer.pack(work(b"x" * LARGE))
    made.writer.send(frame)
    with pytest.raises(BrokenFrames):
        made.reader.next()
    made.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[[bytes], LocalPayload]]:
    """Makes a payload that another process has put into shared memory."""
    files = LocalFiles("redis://a", 1 << 30, parent=tmp_path)
    assert files.open()

    def make(value: bytes) -> LocalPayload:
        digest = sha256(value).hexdigest()
        assert files.put(digest, digest, value, 60.0)
        payload = files.get(digest, digest, len(value))
        files.release([digest])
        assert payload is not None
        return payload

    yield make
    files.close()


def test_a_payload_of_a_frontend_is_passed_on_and_not_copied(way: Way, local: Callable[[bytes], LocalPayload]) -> None:
    values = [b"a" * 40_000, b"b" * (LARGE + 1)]
    inputs: list[Any] = [b"1", local(values[0]), b"c" * LARGE, local(values[1])]
    before = way.writer._segments
    got = way.send(Work("b", inputs, [b"{}"] * 4)).inputs
    del inputs
    gc.collect()
    assert list(map(bytes, got)) == [b"1", values[0], b"c" * LARGE, values[1]]
    mine = got[3].private()
    mine[:1] = b"x"
    assert bytes(mine[:2]) == b"xb"
    assert got[3].view == values[1]
    # The rest of the batch has a segment.
    assert len(before._kept) == 1
    kept = got[1].view
    del got
    for letter in (b"d", b"e"):
        way.send(work(letter * LARGE))
    assert kept == values[0]


def test_more_payloads_than_descriptors_may_come_with_a_frame(way: Way, local: Callable[[bytes], LocalPayload]) -> None:
    values = [bytes([n]) * 33_000 for n in range(70)]
    got = way.send(Work("b", [local(each) for each in values], [b"{}"] * 70)).inputs  # type: ignore[misc]
    assert list(map(bytes, got)) == values


def test_without_shared_memory_a_payload_goes_through_the_socket(
    way: Way, local: Callable[[bytes], LocalPayload], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Way(ToChild, MappedSegments())
    made.writer._segments._works = False
    value = local(b"a" * 40_000)
    made.writer.send(made.writer.pack(Work("b", [value, b"1"], [b"{}"] * 2)))  # type: ignore[list-item]
    assert made.reader.next() == work(b"a" * 40_000, b"1")
    made.close()
