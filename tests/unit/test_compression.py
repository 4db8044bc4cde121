"""Compressed bodies: all of what is within the limit, and no memory for what is not."""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.compression import compress, encoders

from batching.claim.lease import Entry, Verdict
from batching.ports import UnreadableMessage
from tasks.protocol.compression import TooLong, decompress
from tasks.protocol.messages import read_message

_BOMBS: dict[str, Callable[[int], bytes]] = {
    "zlib": lambda size: zlib.compress(bytes(size), 9),
    "bzip2": lambda size: bz2.compress(bytes(size)),
    "lzma": lambda size: lzma.compress(bytes(size)),
}


@given(st.binary(max_size=3000), st.sampled_from(["zlib", "gzip", "bzip2", "lzma", "xz", "application/x-bz2"]))
def test_what_kombu_compresses_comes_back(body: bytes, name: str) -> None:
    compressed, _ = compress(body, name)
    assert decompress(compressed, name, len(body)) == body
    if body:
        with pytest.raises(TooLong):
            decompress(compressed, name, len(body) - 1)


def test_every_way_of_kombus_that_is_installed_is_read() -> None:
    for name in encoders():
        assert decompress(compress(b"body", name)[0], name, 100) == b"body"


@pytest.mark.parametrize("name", _BOMBS)
def test_a_bomb_takes_no_more_memory_than_the_limit(name: str) -> None:
    bomb = _BOMBS[name](50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            decompress(bomb, name, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", _BOMBS)
def test_what_is_cut_short_or_is_none_is_refused(name: str) -> None:
    whole = _BOMBS[name](100)
    for broken in (whole[:-4], whole[: len(whole) // 2], b"", b"no such thing"):
        with pytest.raises(ValueError, match="cannot decompress"):
            decompress(broken, name, 1000)


def test_an_unknown_way_says_which_are_known() -> None:
    with pytest.raises(ValueError, match="'snappy' is not supported; use zlib"):
        decompress(b"", "snappy", 1)


@pytest.mark.parametrize("name", _BOMBS)
def test_its_sender_is_told_under_the_id_of_its_task(name: str) -> None:
    body = _BOMBS[name](5_000_000)
    message = {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/json",
        "headers": {"task": "bunch.infer", "id": "mine", "compression": name},
        "properties": {"body_encoding": "base64", "correlation_id": "mine"},
    }
    with pytest.raises(UnreadableMessage, match="longer than 1048576 bytes when decompressed") as refused:
        read_message(Entry(1, 0, Verdict.RUN, json.dumps(message).encode()), 1000, 1_048_576)
    assert refused.value.task_id == "mine"
