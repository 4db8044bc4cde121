"""The frames in which batches and answers travel, over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.request import Done, Failed, Ok, Rejected, Words, Work
from config.settings import ModelSettings
from workers.executor.ipc import MAX_FRAME, BrokenFrames, Fault, FrameReader, Ready, Start, ToChild, ToParent, encode


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


MODEL = ModelSettings(name="m", source="a.b:C", options={"path": "x", "n": 1, "deep": {"list": [1.5, None]}})
MESSAGES = [
    Start(MODEL, "m/0", 1, [b"/a", b"/\xff"], 20),
    Work("b1", [b'"one"', b"2"], [b"{}", b'{"k":1}'], 8, True, True, ["00-1-2-01", ""], False),
    Work("b2", [], []),
]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=6))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    stream = b"".join(encode(each) for each in MESSAGES)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(theirs, ToChild)
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
    outcomes = [Ok(b"1", b'"n":1'), Rejected("no"), Failed("bad", traceback="tb", retryable=True, words=Words.CALL)]
    answers = [Ready("2"), Done("b", 0.5, outcomes, 3, 16, 1), Fault("device", "an illegal access", settled=True)]
    ours.sendall(b"".join(map(encode, answers)))
    reader = FrameReader(theirs, ToParent)
    assert [reader.next() for _ in answers] == answers


def test_end_of_file_in_the_middle_of_a_frame_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(encode(MESSAGES[0]) + encode(MESSAGES[1])[:-1])
    ours.shutdown(socket.SHUT_WR)
    reader = FrameReader(theirs, ToChild)
    assert list(reader.available()) == MESSAGES[:1]
    assert reader.eof
    assert reader.next() is None


@pytest.mark.parametrize("garbage", [b"hello, this is a print of a model", (MAX_FRAME + 1).to_bytes(8, "big")])
def test_what_is_no_frame_is_noticed(pair: tuple[socket.socket, socket.socket], garbage: bytes) -> None:
    ours, theirs = pair
    ours.sendall(encode(MESSAGES[1]) + garbage)
    messages = FrameReader(theirs, ToChild).available()
    assert next(messages) == MESSAGES[1]
    with pytest.raises(BrokenFrames):
        next(messages)


def test_a_frame_of_another_kind_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(encode(Ready("")))
    with pytest.raises(BrokenFrames):
        FrameReader(theirs, ToChild).next()


@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1))
def test_a_frame_takes_whatever_text_there_is(texts: list[str]) -> None:
    errors = [Failed(each, traceback=each) for each in texts]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(Done("b", 0.5, [Ok(b"\xff"), *errors], 3, 16)))
        read = FrameReader(theirs, ToParent).next()
    assert read.outcomes[0] == Ok(b"\xff")
    escaped = [each.encode(errors="backslashreplace").decode() for each in texts]
    assert [each.message for each in read.outcomes[1:]] == escaped
    assert [each.traceback for each in read.outcomes[1:]] == escaped
    assert (read.passes, read.safe_size) == (3, 16)
