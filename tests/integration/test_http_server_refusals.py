"""The web server refuses rubbish, and anything whose end two readers could see in different places."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.http_server_harness import Client, Server, get, post

_NEXT = get("/smuggled")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("http_server_refusals")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def _with(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: test", *lines, b"", body])


def _chunked(body: bytes) -> bytes:
    return _with(b"Transfer-Encoding: chunked", body=body)


_HEADERS: dict[str, bytes] = {
    "two lengths, equal": _with(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "two lengths, different": _with(b"Content-Length: 3", b"Content-Length: 5", body=b"abc"),
    "length list": _with(b"Content-Length: 3, 3", body=b"abc"),
    "length with a sign": _with(b"Content-Length: +3", body=b"abc"),
    "negative length": _with(b"Content-Length: -3", body=b"abc"),
    "hexadecimal length": _with(b"Content-Length: 0x3", body=b"abc"),
    "length with an underscore": _with(b"Content-Length: 1_0", body=b"abc"),
    "length in other digits": _with("Content-Length: \u0663".encode(), body=b"abc"),
    "length with a decimal point": _with(b"Content-Length: 3.0", body=b"abc"),
    "empty length": _with(b"Content-Length:", body=b"abc"),
    "length beyond 64 bits": _with(b"Content-Length: 99999999999999999999999", body=b"abc"),
    "length, then coding (CL.TE)": _with(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "coding, then length (TE.CL)": _with(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n"),
    "two codings": _with(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunked twice": _with(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked, identity": _with(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked in quotes": _with(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "chunked first": _with(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "chunked first and last": _with(b"Transfer-Encoding: chunked, gzip, chunked", body=b"0\r\n\r\n"),
    "a coding that is no token": _with(b"Transfer-Encoding: g/zip, chunked", body=b"0\r\n\r\n"),
    "nothing before the comma": _with(b"Transfer-Encoding: , chunked", body=b"0\r\n\r\n"),
    "unknown coding and a length": _with(b"Content-Length: 5", b"Transfer-Encoding: gzip", body=b"0\r\n\r\n"),
    "a length and an unknown coding": _with(b"Transfer-Encoding: gzip", b"Content-Length: 5", body=b"0\r\n\r\n"),
    "unknown coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "empty coding": _with(b"Transfer-Encoding:", body=b"0\r\n\r\n"),
    "coding after vertical tab": _with(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "coding, blank before the colon": _with(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "coding, folded": _with(b"Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"),
    "coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded line": _with(b"X-A: one", b" two"),
    "folded with a tab": _with(b"X-A: one", b"\ttwo"),
    "folded first line": b"GET / HTTP/1.1\r\n Host: test\r\n\r\n",
    "blank before the colon": _with(b"X-A : one"),
    "tab before the colon": _with(b"X-A\t: one"),
    "blank in a name": _with(b"X A: one"),
    "no name": _with(b": one"),
    "no colon": _with(b"X-A"),
    "name with a bracket": _with(b"X-A(: one"),
    "name beyond ASCII": _with("X-\u00e9: one".encode()),
    "NUL in a name": _with(b"X-\x00A: one"),
    "NUL in a value": _with(b"X-A: o\x00ne"),
    "escape in a value": _with(b"X-A: o\x1bne"),
    "DEL in a value": _with(b"X-A: o\x7fne"),
    "bare CR in a value": _with(b"X-A: one\rX-B: two"),
    "bare LF in a value": _with(b"X-A: one\nX-B: two"),
    "bare LF before the blank line": b"GET / HTTP/1.1\r\nHost: test\n\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": _with(b"Host: test"),
    "host list": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "a port beyond all ports": b"GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n",
    "a port of letters": b"GET / HTTP/1.1\r\nHost: a:http\r\n\r\n",
    "a port with a sign": b"GET / HTTP/1.1\r\nHost: a:-1\r\n\r\n",
    "an IPv6 host and a port beyond": b"GET / HTTP/1.1\r\nHost: [::1]:99999\r\n\r\n",
    "two credentials": _with(b"Authorization: Bearer a", b"Authorization: Bearer b"),
}

_REQUESTS: dict[str, bytes] = {
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "HTTP/2 in the request line": b"GET / HTTP/2.0\r\nHost: test\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: test\r\n\r\n",
    "HTTP/1.10": b"GET / HTTP/1.10\r\nHost: test\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\n\r\n",
    "small http": b"GET / http/1.1\r\nHost: test\r\n\r\n",
    "RTSP": b"DESCRIBE / RTSP/1.0\r\nHost: test\r\n\r\n",
    "ICE": b"SOURCE / ICE/1.0\r\nHost: test\r\n\r\n",
    "small method": b"get / HTTP/1.1\r\nHost: test\r\n\r\n",
    "unknown method": b"FETCH / HTTP/1.1\r\nHost: test\r\n\r\n",
    "method of symbols": b"G@T / HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "two blanks after the method": b"GET  / HTTP/1.1\r\nHost: test\r\n\r\n",
    "two blanks after the target": b"GET /  HTTP/1.1\r\nHost: test\r\n\r\n",
    "blank behind the version": b"GET / HTTP/1.1 \r\nHost: test\r\n\r\n",
    "blank first": b" GET / HTTP/1.1\r\nHost: test\r\n\r\n",
    "tab between": b"GET\t/\tHTTP/1.1\r\nHost: test\r\n\r\n",
    "blank in the target": b"GET /a b HTTP/1.1\r\nHost: test\r\n\r\n",
    "control character in the target": b"GET /\x01 HTTP/1.1\r\nHost: test\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: test\r\n\r\n",
    "DEL in the target": b"GET /\x7f HTTP/1.1\r\nHost: test\r\n\r\n",
    "CR in the target": b"GET /\rX HTTP/1.1\r\nHost: test\r\n\r\n",
    "raw UTF-8 in the target": "GET /\u00e9 HTTP/1.1\r\nHost: test\r\n\r\n".encode(),
    "fragment": b"GET /#top HTTP/1.1\r\nHost: test\r\n\r\n",
    "relative target": b"GET index HTTP/1.1\r\nHost: test\r\n\r\n",
    "asterisk": b"GET * HTTP/1.1\r\nHost: test\r\n\r\n",
    "another scheme": b"GET ftp://test/ HTTP/1.1\r\nHost: test\r\n\r\n",
    "URL with a user": b"GET http://a@test/ HTTP/1.1\r\nHost: test\r\n\r\n",
    "URL with a port beyond all ports": b"GET http://test:70000/ HTTP/1.1\r\nHost: test\r\n\r\n",
    "URL without a host": b"GET http:///a HTTP/1.1\r\nHost: test\r\n\r\n",
    "bare LF behind the request line": b"GET / HTTP/1.1\nHost: test\r\n\r\n",
    "bare LFs only": b"GET / HTTP/1.1\nHost: test\n\n",
    "bare LF first": b"\nGET / HTTP/1.1\r\nHost: test\r\n\r\n",
    "CR CR LF": b"GET / HTTP/1.1\r\r\nHost: test\r\n\r\n",
    "blank lines only": b"\r\n" * 10 + get("/"),
    "JSON": b'{"input": "no headers at all"}\r\n\r\n',
    "binary": bytes(range(256)),
    "NULs": bytes(1000),
    "chunk size with a sign": _chunked(b"+3\r\nabc\r\n0\r\n\r\n"),
    "negative chunk size": _chunked(b"-3\r\nabc\r\n0\r\n\r\n"),
    "chunk size 0x3": _chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
    "chunk size with an underscore": _chunked(b"0_3\r\nabc\r\n0\r\n\r\n"),
    "no chunk size": _chunked(b"\r\nabc\r\n0\r\n\r\n"),
    "blank before a chunk size": _chunked(b" 3\r\nabc\r\n0\r\n\r\n"),
    "blank behind a chunk size": _chunked(b"3 \r\nabc\r\n0\r\n\r\n"),
    "chunk size of letters": _chunked(b"xyz\r\nabc\r\n0\r\n\r\n"),
    "chunk size ends in LF": _chunked(b"3\nabc\r\n0\r\n\r\n"),
    "chunk size of 17 digits": _chunked(b"00000000000000003\r\nabc\r\n0\r\n\r\n"),
    "chunk shorter than said": _chunked(b"4\r\nabc\r\n0\r\n\r\n"),
    "chunk longer than said": _chunked(b"2\r\nabc\r\n0\r\n\r\n"),
    "chunk ends in LF": _chunked(b"3\r\nabc\n0\r\n\r\n"),
    "LF in a chunk extension": _chunked(b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    "CR in a chunk extension": _chunked(b"3;a\rb\r\nabc\r\n0\r\n\r\n"),
    "NUL in a chunk extension": _chunked(b"3;\x00\r\nabc\r\n0\r\n\r\n"),
    "long chunk extension": _chunked(b"3;" + b"a" * 300 + b"\r\nabc\r\n0\r\n\r\n"),
    "endless chunk extension": _chunked(b"3;" + b"a" * 100_000),
    "many chunk extensions": _chunked((b"1;" + b"a" * 200 + b"\r\na\r\n") * 100 + b"0\r\n\r\n"),
    **{
        f"chunk extension {each!r}": _chunked(b"3%b\r\nabc\r\n0\r\n\r\n" % each)
        for each in (b";", b"; ", b";;a", b";a;", b";=1", b";a=", b';a="1', b';a="1"2', b";a b", b";a/b", b";a=1=2")
    },
    **{
        f"{name} in a trailer": _chunked(b"0\r\n%b: 5\r\n\r\n" % name.encode())
        for name in (
            "Content-Length",
            "content-length",
            "Transfer-Encoding",
            "Host",
            "HOST",
            "Trailer",
            "Connection",
            "Authorization",
            "Cookie",
            "Content-Type",
            "Content-Encoding",
            "Expect",
            "X-Tier",
        )
    },
    "a length behind a harmless trailer": _chunked(b"0\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n"),
    "20,000 chunks of a byte": _chunked(b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n"),
    "trailer without a colon": _chunked(b"0\r\nX-A\r\n\r\n"),
    "trailer with LF": _chunked(b"0\r\nX-A: 1\nX-B: 2\r\n\r\n"),
    "folded trailer": _chunked(b"0\r\nX-A: 1\r\n 2\r\n\r\n"),
    "endless trailer": _chunked(b"0\r\n" + b"X-A: 1\r\n" * 10_000),
}

_UNKNOWN_CODINGS = (
    "gzip, chunked", "identity", "xchunked", "deflate", "gzip;level=9, chunked", "a, b , chunked", "identity,chunked",
)  # fmt: skip
_OTHERS: dict[str, tuple[bytes, int, str]] = {
    **{
        f"coding {coding}": (_with(f"Transfer-Encoding: {coding}".encode(), body=b"0\r\n\r\n"), 501, "INVALID_HEADER")
        for coding in _UNKNOWN_CODINGS
    },
    "long request line": (get("/" + "a" * 8200), 414, "INVALID_INPUT"),
    "endless request line": (b"GET /" + b"a" * 100_000, 414, "INVALID_INPUT"),
    "too many headers": (get("/", *["A: b"] * 100), 431, "INVALID_HEADER"),
    "100,000 headers": (b"GET / HTTP/1.1\r\nHost: test\r\n" + b"A: b\r\n" * 100_000, 431, "INVALID_HEADER"),
    "a large header": (get("/", "A: " + "b" * 70_000), 431, "INVALID_HEADER"),
    "an endless header": (b"GET / HTTP/1.1\r\nA: " + b"b" * 1_000_000, 431, "INVALID_HEADER"),
    "an endless name": (b"GET / HTTP/1.1\r\n" + b"A" * 1_000_000, 431, "INVALID_HEADER"),
    "a large body": (post("/", bytes(10_000_000)), 413, "PAYLOAD_TOO_LARGE"),
    "a body said to be large": (
        _with(b"Content-Length: 18446744073709551615"), 413, "PAYLOAD_TOO_LARGE"),
    "a large chunk": (_chunked(b"100001\r\n"), 413, "PAYLOAD_TOO_LARGE"),
    "a huge chunk": (_chunked(b"ffffffffffffffff\r\n"), 413, "PAYLOAD_TOO_LARGE"),
    "large in chunks": (_chunked(b"8000\r\n" + bytes(0x8000) + b"\r\n") + (
        b"8000\r\n" + bytes(0x8000) + b"\r\n") * 40, 413, "PAYLOAD_TOO_LARGE"),
    "another expectation": (_with(b"Expect: 200-ok"), 417, "INVALID_HEADER"),
}  # fmt: skip

_TABLE = [
    *[(name, data, 400, "INVALID_HEADER") for name, data in _HEADERS.items()],
    *[(name, data, 400, "INVALID_INPUT") for name, data in _REQUESTS.items()],
    *[(name, *rest) for name, rest in _OTHERS.items()],
]


@pytest.mark.parametrize(("data", "status", "code"), [row[1:] for row in _TABLE], ids=[row[0] for row in _TABLE])
def test_refused(server: Server, client: Client, data: bytes, status: int, code: str) -> None:
    calls = server.state()["calls"]
    # What follows would be a request of its own, were it read as one.
    try:
        client.send(data + _NEXT)
    except ConnectionError:
        pytest.fail("the server reset the connection instead of answering")
    answer = client.answer()
    assert answer.status == status
    assert set(answer.json) == {"error", "message", "request_id"}
    assert answer.json["error"] == code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    assert _UUID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["x-request-id"] == answer.json["request_id"]
    assert client.is_closed(), "something behind the refused request was answered"
    assert server.state()["calls"] == calls, "the application was called"


def test_what_came_before_is_answered_first(client: Client) -> None:
    client.send(get("/a") + get("/b") + b"rubbish\r\n\r\n" + _NEXT)
    assert [client.answer().json["PATH_INFO"] for _ in range(2)] == ["/a", "/b"]
    assert client.answer().status == 400
    assert client.is_closed()


class TestRequestId:
    def test_the_callers(self, client: Client) -> None:
        assert client.get("/", "X-Request-Id: Mine_1.2-3", "Bad Name: 1").headers["x-request-id"] == "Mine_1.2-3"

    @pytest.mark.parametrize("value", ["", "a b", "a/b", "a" * 129, '"a"', "a\x00"])
    def test_not_one_that_is_none(self, client: Client, value: str) -> None:
        answer = client.get("/", f"x-request-id: {value}", "Bad Name: 1")
        assert _UUID.fullmatch(answer.headers["x-request-id"])

    def test_not_the_last_requests(self, client: Client) -> None:
        client.get("/", "X-Request-Id: first")
        assert client.get("/", "Bad Name: 1").headers["x-request-id"] != "first"

    def test_not_one_inside_the_body(self, client: Client) -> None:
        body = b"zz\r\nX-Request-Id: inside\r\n"
        assert client.ask(_chunked(body)).headers["x-request-id"] != "inside"

    def test_with_a_body_over_the_limit(self, client: Client) -> None:
        answer = client.ask(_with(b"X-Request-Id: big", b"Content-Length: 2000000"))
        assert (answer.status, answer.headers["x-request-id"]) == (413, "big")


def test_head_is_refused_without_a_body(client: Client) -> None:
    answer = client.ask(b"HEAD / HTTP/1.1\r\n\r\n")
    assert answer.status == 400
    assert client.is_closed()
