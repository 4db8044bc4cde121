"""A request's head, parsed: what it becomes, and that rubbish is refused and nothing worse."""

from __future__ import annotations

import contextlib
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.http import head as head_module
from webapp.http.errors import (
    HeadTooLargeError,
    InvalidHeaderError,
    InvalidRequestError,
    RequestLineTooLongError,
    RequestRefusedError,
)
from webapp.http.head import Head, Template, check_beginning
from webapp.http.limits import ServerLimits

LIMITS = ServerLimits()


def _parse(*lines: str, limits: ServerLimits = LIMITS) -> Head:
    return Head("\r\n".join([*lines, "", ""]).encode("latin-1"), {"wsgi.version": (1, 0)}, limits)


class TestHead:
    def test_environ_is_the_shared_one_and_the_requests_own(self) -> None:
        base = {"SERVER_NAME": "x"}
        environ = Head(b"GET /a HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n\r\n", base, LIMITS).environ
        assert environ["SERVER_NAME"] == "x"
        assert environ["HTTP_X_A"] == "1"
        assert base == {"SERVER_NAME": "x"}

    @pytest.mark.parametrize(
        ("version", "connection", "keep_alive"),
        [
            ("1.1", None, True),
            ("1.1", "close", False),
            ("1.1", "keep-alive, CLOSE", False),
            ("1.1", "Keep-Alive", True),
            ("1.1", "upgrade", True),
            ("1.0", None, False),
            ("1.0", "keep-alive", True),
            ("1.0", "keep-alive, close", False),
            ("1.0", "closed", False),
        ],
    )
    def test_keep_alive(self, version: str, connection: str | None, keep_alive: bool) -> None:
        lines = [f"Connection: {connection}"] if connection else []
        assert _parse(f"GET / HTTP/{version}", "Host: h", *lines).keep_alive is keep_alive

    def test_framing(self) -> None:
        assert _parse("POST / HTTP/1.1", "Host: h", "Content-Length: 007").content_length == 7
        assert _parse("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked").chunked
        neither = _parse("POST / HTTP/1.1", "Host: h")
        assert (neither.chunked, neither.content_length) == (False, 0)

    @pytest.mark.parametrize("host", ["h", "h:80", "1.2.3.4:1", "[::1]:80", "a-b.c_d~", "", "h:"])
    def test_hosts(self, host: str) -> None:
        assert _parse("GET / HTTP/1.1", f"Host: {host}").environ["HTTP_HOST"] == host

    @pytest.mark.parametrize("host", ["a b", "a/b", "a,b", "u@h", "h:80:80", "h:x", "[::1", "a\\b", "\u00e9"])
    def test_what_is_no_host(self, host: str) -> None:
        with pytest.raises(InvalidHeaderError):
            _parse("GET / HTTP/1.1", f"Host: {host}")

    def test_http10_needs_no_host(self) -> None:
        assert "HTTP_HOST" not in _parse("GET / HTTP/1.0").environ

    def test_limits_are_inclusive(self) -> None:
        limits = ServerLimits(request_line_bytes=20, header_count=2, header_bytes=40)
        line = "GET /abcdef HTTP/1.1"
        assert _parse(line, "Host: h", "A: b", limits=limits)
        with pytest.raises(RequestLineTooLongError):
            _parse("GET /abcdefg HTTP/1.1", "Host: h", limits=limits)
        with pytest.raises(HeadTooLargeError):
            _parse(line, "Host: h", "A: b", "B:", limits=limits)
        with pytest.raises(HeadTooLargeError):
            _parse(line, "Host: h", "A: bcd", limits=limits)

    def test_invented_names_do_not_fill_the_memory(self) -> None:
        for number in range(2000):
            _parse("GET / HTTP/1.1", "Host: h", f"X-{number}: 1")
        assert len(head_module._keys) <= 512
        assert _parse("GET / HTTP/1.1", "Host: h", "X-Late: 1").environ["HTTP_X_LATE"] == "1"


class TestBeginning:
    @pytest.mark.parametrize("raw", [b"G", b"GET", b"GET ", b"GET /a", b"GET / HTTP/1.1\r", b"GET / HTTP/1.1\r\nHo"])
    def test_may_become_a_head(self, raw: bytes) -> None:
        check_beginning(raw, LIMITS)

    @pytest.mark.parametrize(
        "raw", [b"\x16\x03\x01", b"get", b"{", b" GET", b"GET / HTTP/1.2\r\n", b"PRI * HTTP/2.0\r\n"]
    )
    def test_cannot(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequestError):
            check_beginning(raw, LIMITS)

    def test_whole_heads_have_whole_beginnings(self) -> None:
        raw = b"GET /a?b HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n"
        for end in range(1, len(raw)):
            check_beginning(raw[:end], LIMITS)


_FIRST = (
    b"POST /v1/inference?a=b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer k\r\nContent-Length: 12\r\n"
    b"X-Content-Length: 7\r\n\r\n"
)


def _facts(head: Head) -> tuple[object, ...]:
    return tuple(getattr(head, name) for name in Head.__slots__)


class TestTemplate:
    def _template(self, raw: bytes = _FIRST, limits: ServerLimits = LIMITS) -> Template:
        template = Template.of(Head(raw, {"SERVER_NAME": "x"}, limits), raw, limits)
        assert template is not None
        return template

    def test_the_same_head_with_a_longer_body(self) -> None:
        head = self._template().read(_FIRST.replace(b"12", b"3456"))
        assert head is not None
        assert (head.content_length, head.environ["CONTENT_LENGTH"]) == (3456, "3456")
        assert (head.environ["SERVER_NAME"], head.environ["HTTP_AUTHORIZATION"]) == ("x", "Bearer k")

    def test_it_does_not_hold_on_to_what_it_was_made_from(self) -> None:
        head = Head(_FIRST, {}, LIMITS)
        template = Template.of(head, _FIRST, LIMITS)
        head.environ["wsgi.input"] = "a body"
        assert not any(held in gc.get_referents(template) for held in (head, head.environ))

    def test_each_has_an_environ_of_its_own(self) -> None:
        template = self._template()
        for _ in range(2):
            head = template.read(_FIRST)
            assert head is not None
            assert "mine" not in head.environ
            head.environ["mine"] = 1

    @pytest.mark.parametrize(
        "length", [b"", b"0", b"012", b"+12", b"1 2", b"-1", b"1_2", b"12, 12", b"1234567890", "²".encode()]
    )
    def test_what_is_no_plain_length_is_for_the_parser(self, length: bytes) -> None:
        assert self._template().read(_FIRST.replace(b" 12", b" " + length)) is None

    def test_what_has_become_too_long_is_for_the_parser(self) -> None:
        template = self._template(limits=ServerLimits(request_line_bytes=100, header_bytes=len(_FIRST)))
        assert template.read(_FIRST) is not None
        assert template.read(_FIRST.replace(b"12", b"123")) is None

    @pytest.mark.parametrize(
        "raw",
        [
            b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX: " + 3000 * b"x" + b"\r\n\r\n",
        ],
    )
    def test_what_is_not_kept(self, raw: bytes) -> None:
        assert Template.of(Head(raw, {}, LIMITS), raw, LIMITS) is None

    @given(st.data())
    def test_what_it_reads_the_parser_reads_alike(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(_FIRST)))
        end = data.draw(st.integers(start, min(len(_FIRST), start + 6)))
        put = data.draw(st.binary(max_size=6) | st.integers(0, 10**10).map(lambda each: b"%d" % each))
        raw = _FIRST[:start] + put + _FIRST[end:]
        read = self._template().read(raw)
        if read is not None:
            assert _facts(read) == _facts(Head(raw, {"SERVER_NAME": "x"}, LIMITS))

    @given(st.integers(1, 10**9 - 1))
    def test_every_length(self, length: int) -> None:
        raw = _FIRST.replace(b"12", b"%d" % length)
        read = self._template().read(raw)
        assert read is not None
        assert _facts(read) == _facts(Head(raw, {"SERVER_NAME": "x"}, LIMITS))


_BITS = st.sampled_from([
    b"GET", b"POST", b" ", b"  ", b"/", b"*", b"?a=b", b"%00", b"http://h/", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0",
    b"\r\n", b"\n", b"\r", b"\t", b"\x00", b":", b": ", b",", b";", b"Host: h\r\n", b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"chunked",
    b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"X_Y: 1\r\n",
    b"Cookie: a\r\n", b"\xff",
])  # fmt: skip


@given(
    st.one_of(st.binary(max_size=200), st.lists(_BITS | st.binary(max_size=3), max_size=25).map(b"".join)),
    st.sampled_from([b"", b"GET / HTTP/1.1\r\nHost: h\r\n", b"POST /a HTTP/1.1\r\nHost: h\r\n", b"GET / HTTP/1.0\r\n"]),
)
def test_anything_is_a_head_with_one_meaning_or_refused(rubbish: bytes, before: bytes) -> None:
    raw = before + rubbish
    with contextlib.suppress(RequestRefusedError):
        check_beginning(raw, LIMITS)
    # The connection cuts heads at the first blank line.
    raw = raw.split(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        parsed = Head(raw, {}, LIMITS)
    except RequestRefusedError:
        return
    assert raw.count(b"\n") == raw.count(b"\r") == raw.count(b"\r\n")
    assert b"\x00" not in raw
    assert b"\r\n " not in raw
    assert b"\r\n\t" not in raw
    lowered = raw.lower()
    assert lowered.count(b"\r\ncontent-length:") + lowered.count(b"\r\ntransfer-encoding:") <= 1
    assert parsed.chunked == (b"\r\ntransfer-encoding:" in lowered)
    assert not (parsed.chunked and parsed.content_length)
    assert all(isinstance(value, str) for value in parsed.environ.values())
