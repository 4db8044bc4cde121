"""Responses: whatever the application does, the client can tell where the body ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.http.response import Response


class _Sink:
    def __init__(self, *, closing: bool = False) -> None:
        self.sent: list[bytes] = []
        self._closing = closing

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    send_last = send

    def must_close(self) -> bool:
        return self._closing


def _respond(
    parts: list[bytes] | tuple[bytes, ...],
    headers: list[tuple[str, str]],
    *,
    status: str = "200 OK",
    http11: bool = True,
    is_head: bool = False,
    keep_alive: bool = True,
    closing: bool = False,
    whole: bool = False,
) -> tuple[Response, list[bytes]]:
    sink = _Sink(closing=closing)
    response = Response(sink, http11=http11, is_head=is_head, keep_alive=keep_alive)
    response.start_response(status, headers)
    if whole:
        response.send_whole(b"".join(parts))
    else:
        for part in parts:
            response.write(part)
        response.finish()
    return response, sink.sent


def _read(sent: list[bytes], *, is_head: bool) -> tuple[bytes, dict[str, str], bytes]:
    """A client's view: (body, headers, what is left over). Raises `EOFError` when the body is not whole."""
    head, rest = b"".join(sent).split(b"\r\n\r\n", 1)
    status_line, *lines = head.decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs)
    if is_head or status_line.split(" ")[1] in {"204", "304"}:
        return b"", headers, rest
    if "transfer-encoding" in headers:
        assert "content-length" not in headers
        body = b""
        while True:
            size, separator, rest = rest.partition(b"\r\n")
            if not separator:
                raise EOFError
            if size == b"0":
                assert rest.startswith(b"\r\n")
                return body, headers, rest[2:]
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    if "content-length" in headers:
        length = int(headers["content-length"])
        if len(rest) < length:
            raise EOFError
        return rest[:length], headers, rest[length:]
    assert headers["connection"] == "close"
    return rest, headers, b""


@given(
    parts=st.lists(st.binary(max_size=20), max_size=5),
    length=st.none() | st.integers(min_value=0, max_value=60),
    status=st.sampled_from(["200 OK", "204 No Content", "304 Not Modified", "404 Not Found", "200"]),
    http11=st.booleans(),
    is_head=st.booleans(),
    keep_alive=st.booleans(),
    closing=st.booleans(),
    whole=st.booleans(),
)
def test_the_client_knows_where_it_ends(
    parts: list[bytes],
    length: int | None,
    status: str,
    http11: bool,
    is_head: bool,
    keep_alive: bool,
    closing: bool,
    whole: bool,
) -> None:
    headers = [("X-A", "1")] + ([("Content-Length", str(length))] if length is not None else [])
    response, sent = _respond(
        parts,
        headers,
        status=status,
        http11=http11,
        is_head=is_head,
        keep_alive=keep_alive,
        closing=closing,
        whole=whole,
    )
    given_body = b"".join(parts)
    bodiless = is_head or status[:3] in {"204", "304"}
    too_short = length is not None and length > len(given_body) and not bodiless
    if too_short:
        with pytest.raises(EOFError):
            _read(sent, is_head=is_head)
        assert not response.keep_alive
        return
    body, received, rest = _read(sent, is_head=is_head)
    assert rest == b""
    assert body == (b"" if bodiless else given_body[:length])
    assert response.keep_alive == (received.get("connection") != "close")
    assert not (response.keep_alive and (closing or not keep_alive))
    if not http11:
        assert "transfer-encoding" not in received
        assert "connection" in received
    if length is not None and not status.startswith("204"):
        assert received["content-length"] == str(length)


class TestSending:
    def test_a_whole_body_leaves_with_its_head(self) -> None:
        assert len(_respond([b"a", b"b"], [], whole=True)[1]) == 1

    def test_so_does_a_first_part(self) -> None:
        assert len(_respond([b"ab"], [("Content-Length", "2")])[1]) == 1

    def test_each_part_is_sent_when_it_comes(self) -> None:
        sink = _Sink()
        response = Response(sink, http11=True, is_head=False, keep_alive=True)
        response.start_response("200 OK", [])
        response.write(b"one")
        assert sink.sent[-1].endswith(b"3\r\none\r\n")
        response.write(b"")
        assert len(sink.sent) == 1
        response.write(b"two")
        assert sink.sent[-1] == b"3\r\ntwo\r\n"

    def test_a_head_response_names_the_length_of_a_body_that_is_there(self) -> None:
        assert b"Content-Length: 3" in _respond([b"abc"], [], is_head=True, whole=True)[1][0]
        assert b"Content-Length" not in _respond([], [], is_head=True, whole=True)[1][0]


class TestHeaders:
    @pytest.mark.parametrize(
        "header",
        [
            ("X-A", "a\r\nX-B: c"),
            ("X-A", "a\nb"),
            ("X-A", "a\rb"),
            ("X-A", "a\0b"),
            ("X A", "a"),
            ("X-A:", "a"),
            ("X-A\r\nB", "a"),
            ("", "a"),
            ("Content-Length", "x"),
            ("Content-Length", "-1"),
            ("X-A", "\u20ac"),
        ],
    )
    def test_what_cannot_be_sent_is_an_error_before_anything_is(self, header: tuple[str, str]) -> None:
        sink = _Sink()
        response = Response(sink, http11=True, is_head=False, keep_alive=True)
        response.start_response("200 OK", [header])
        with pytest.raises(ValueError, match=r"."):
            response.send_whole(b"")
        assert not sink.sent
        assert not response.started

    def test_values_that_are_no_strings(self) -> None:
        with pytest.raises(TypeError):
            _respond([b""], [("X-A", 1)], whole=True)  # type: ignore[list-item]

    @pytest.mark.parametrize("status", ["200 OK\r\nX-A: 1", "OK", "100 Continue", "20 OK", "2000 OK", "200\u20ac"])
    def test_what_is_no_status(self, status: str) -> None:
        with pytest.raises(ValueError, match="not a status"):
            _respond([], [], status=status)

    def test_two_lengths(self) -> None:
        with pytest.raises(ValueError, match="not the only one"):
            _respond([b"ab"], [("Content-Length", "2"), ("content-length", "3")])

    def test_framing_is_the_servers(self) -> None:
        _, sent = _respond(
            [b"ab"], [("Transfer-Encoding", "gzip"), ("Keep-Alive", "9"), ("Connection", "x")], whole=True
        )
        assert b"gzip" not in sent[0]
        assert b"Keep-Alive" not in sent[0]
        assert b"Connection" not in sent[0]

    def test_the_applications_date_is_kept(self) -> None:
        _, sent = _respond([], [("date", "then")], whole=True)
        assert sent[0].lower().count(b"\r\ndate: ") == 1
        assert b"date: then" in sent[0]


class TestStartResponse:
    def test_exc_info_after_the_head_raises_it(self) -> None:
        response = Response(_Sink(), http11=True, is_head=False, keep_alive=True)
        response.start_response("200 OK", [])
        response.write(b"out")
        error = RuntimeError("late")
        with pytest.raises(RuntimeError, match="late"):
            response.start_response("500 X", [], (RuntimeError, error, error.__traceback__))

    def test_exc_info_before_it_replaces_everything(self) -> None:
        sink = _Sink()
        response = Response(sink, http11=True, is_head=False, keep_alive=True)
        response.start_response("200 OK", [("X-First", "1")])
        error = RuntimeError("early")
        response.start_response("500 X", [], (RuntimeError, error, error.__traceback__))
        response.finish()
        assert sink.sent[0].startswith(b"HTTP/1.1 500 X\r\n")
        assert b"X-First" not in sink.sent[0]


@pytest.mark.parametrize(
    ("content_type", "kept"),
    [("application/json", False), ("text/plain; charset=utf-8", True), ("application/jsonl", True)],
)
def test_no_answer_is_guessed_at_and_none_of_json_is_kept(content_type: str, kept: bool) -> None:
    _, sent = _respond([b"{}"], [("Content-Type", content_type)], whole=True)
    head = b"".join(sent).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head.count(b"X-Content-Type-Options: nosniff") == 1
    assert head.count(b"Cache-Control: no-store") == (not kept)
