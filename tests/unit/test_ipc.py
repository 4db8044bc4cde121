"""The frames in which batches and answers travel, over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.settings import ModelSettings
from workers.executor.ipc import MAX_FRAME, BrokenFrames, FrameReader, ItemError, Ran, Ready, Run, Start, encode


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


MODEL = ModelSettings(name="m", source="a.b:C", options={"path": "x", "n": 1, "deep": {"list": [1.5, None]}})
MESSAGES = [
    Start(MODEL, "m/0", 1, [b"/a", b"/\xff"], 20),
    Run("b1", [b'"one"', b"2"], [b"{}", b'{"k":1}']),
    Run("b2", [], []),
]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=6))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    stream = b"".join(encode(each) for each in MESSAGES)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(theirs, Start | Run)
        read: list[Any] = []
        at = 0
        for cut in [*cuts, len(stream)]:
            ours.sendall(stream[at : at + cut])
            at += cut
            read += reader.available()
        assert read == MESSAGES
        assert not reader.eof


def test_answers_travel_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ran = Ran("b", 0.5, [b"1", ItemError("no", rejected=True), ItemError("bad", traceback="tb")], 3, 16)
    ours.sendall(encode(Ready("2")) + encode(ran))
    reader = FrameReader(theirs, Ready | Ran)
    assert [reader.next(), reader.next()] == [Ready("2"), ran]


def test_end_of_file_in_the_middle_of_a_frame_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(encode(MESSAGES[0]) + encode(MESSAGES[1])[:-1])
    ours.shutdown(socket.SHUT_WR)
    reader = FrameReader(theirs, Start | Run)
    assert list(reader.available()) == MESSAGES[:1]
    assert reader.eof
    assert reader.next() is None


@pytest.mark.parametrize("garbage", [b"hello, this is a print of a model", (MAX_FRAME + 1).to_bytes(8, "big")])
def test_what_is_no_frame_is_noticed(pair: tuple[socket.socket, socket.socket], garbage: bytes) -> None:
    ours, theirs = pair
    ours.sendall(encode(MESSAGES[1]) + garbage)
    messages = FrameReader(theirs, Start | Run).available()
    assert next(messages) == MESSAGES[1]
    with pytest.raises(BrokenFrames):
        next(messages)


def test_a_frame_of_another_kind_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(encode(Ready("")))
    with pytest.raises(BrokenFrames):
        FrameReader(theirs, Start | Run).next()


@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1))
def test_a_frame_takes_whatever_text_there_is(texts: list[str]) -> None:
    errors: list[bytes | ItemError] = [ItemError(each, traceback=each) for each in texts]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(Ran("b", 0.5, [b"\xff", *errors], 3, 16)))
        read = FrameReader(theirs, Ran).next()
    assert read.outcomes[0] == b"\xff"
    escaped = [each.encode(errors="backslashreplace").decode() for each in texts]
    assert [each.message for each in read.outcomes[1:]] == escaped
    assert [each.traceback for each in read.outcomes[1:]] == escaped
    assert (read.passes, read.safe_size) == (3, 16)
