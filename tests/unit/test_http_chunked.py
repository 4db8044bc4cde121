"""Chunked bodies: the same however they arrive, and nothing that two readers could read in two ways."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.http.chunked import ChunkedBody
from webapp.http.errors import BodyTooLargeError, InvalidRequestError, RequestRefusedError
from webapp.http.limits import ServerLimits

LIMITS = ServerLimits(body_bytes=1000)


def _encode(parts: list[bytes], *, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return chunks + b"0\r\n" + trailer + b"\r\n"


def _read(data: bytes, cuts: list[int]) -> tuple[bytes, bytes] | None:
    """(body, what is left over), with `data` fed in pieces."""
    decoder = ChunkedBody(LIMITS.body_bytes)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        rest = decoder.feed(data[start:end])
        if rest is not None:
            return decoder.body, rest + data[end:]
    return None


@given(
    st.lists(st.binary(max_size=30), max_size=20),
    st.sampled_from([b"", b";a", b";a=b", b"; a;b", b';a="b;c\\"";d=e']),
    st.sampled_from([b"", b"X-A: 1\r\n", b"X-A: 1\r\nX-B:\r\n"]),
    st.binary(max_size=20),
    st.lists(st.integers(min_value=0), max_size=8),
)
def test_any_cut_gives_the_body_and_the_rest(
    parts: list[bytes], extension: bytes, trailer: bytes, behind: bytes, cuts: list[int]
) -> None:
    data = _encode(parts, extension=extension, trailer=trailer)
    assert _read(data + behind, cuts) == (b"".join(parts), behind)
    for end in {0, 1, len(data) // 2, len(data) - 1}:
        assert _read(data[:end], cuts) is None


@given(
    st.lists(st.sampled_from([b"0", b"1", b"3", b"f", b"g", b"\r\n", b"\r", b"\n", b";", b" ", b"abc", b"\x00"])),
    st.lists(st.integers(min_value=0), max_size=5),
)
def test_rubbish_is_refused_or_waits_however_it_arrives(bits: list[bytes], cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> object:
        try:
            return _read(b"".join(bits), cuts)
        except RequestRefusedError as error:
            return type(error)

    assert outcome(cuts) == outcome([])


class TestLimits:
    def test_the_limit_is_inclusive(self) -> None:
        assert _read(_encode([bytes(500), bytes(500)]), []) == (bytes(1000), b"")

    def test_refused_at_the_size_before_the_data(self) -> None:
        decoder = ChunkedBody(LIMITS.body_bytes)
        assert decoder.feed(b"1f4\r\n" + bytes(500) + b"\r\n") is None
        with pytest.raises(BodyTooLargeError):
            decoder.feed(b"1f5\r\n")

    def test_extensions_add_up(self) -> None:
        with pytest.raises(InvalidRequestError):
            _read(_encode([b"a"] * 100, extension=b";" + b"x" * 100), [])

    def test_leading_zeros_add_up(self) -> None:
        with pytest.raises(InvalidRequestError):
            _read(b"0000000000000001\r\na\r\n" * 600, [])

    def test_trailers_add_up(self) -> None:
        with pytest.raises(InvalidRequestError):
            _read(_encode([], trailer=b"X-A: 1\r\n" * 2000), [])

    def test_a_line_without_end_is_refused(self) -> None:
        decoder = ChunkedBody(LIMITS.body_bytes)
        assert decoder.feed(b"1;" + b"a" * 100) is None
        with pytest.raises(InvalidRequestError):
            decoder.feed(b"a" * 200)
