"""Rubbish at the frontend: a clear refusal each, nothing queued, nobody harmed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis import Redis

from tasks.fleet.registry_reader import Fleet
from tasks.protocol.json_structure import MAX_DEPTH
from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.integration.http_server_harness import Client, post

LIMIT = 1024 * 1024
JSON = "Content-Type: application/json"


@pytest.fixture(autouse=True)
def nothing_queued(store: Redis, api: Api) -> Iterator[None]:
    """Every test here: not one message written to any queue, and the stack as well as before."""
    pushes, workers = pushed(store), executors(store)
    yield
    assert pushed(store) == pushes
    assert sum(store.llen(key) for key in store.keys("bunch.*")) == 0
    assert executors(store) == workers
    assert api.infer("still here").status == 200
    assert pushed(store) > pushes


def pushed(store: Redis) -> int:
    """LPUSH calls so far, by scripts too. All processes write to queues by no other command."""
    return int(store.info("commandstats").get("cmdstat_lpush", {}).get("calls", 0))


def executors(store: Redis) -> list[tuple[str, str, int | None, int]]:
    """The processes' identities; another process or a restart shows."""
    return sorted(
        (row.id, each.executor, each.pid, each.restarts) for row in Fleet(store).workers() for each in row.models
    )


def code_of(client: Client, request: bytes) -> tuple[int, str]:
    answer = client.ask(request)
    assert answer.headers["x-request-id"] == answer.json["request_id"]
    assert answer.json["message"]
    return answer.status, answer.json["error"]


def test_bodies_that_are_no_json(api: Api) -> None:
    for raw in (
        *(b"", b" ", b"{", b"}", b"nothing", b"{'input': 1}", b'{"input": 1,}', b'{"input": }', b'{"input": 1} {}'),
        *(b'{"input": NaN}', b'{"input": Infinity}', b'{"input": -Infinity}', b'{"input": nan}', b'{"input": 01}'),
        *(b'{"input": +1}', b'{"input": .5}', b'{"input": 0x10}', b'{"input": "a\nb"}', b'{"input": "\\x41"}'),
        *(b'{"input": "\\ud800"}', b'{"input": "\\udc00 and more"}', b'{"input": ["\\ud800\\ud800"]}'),
        *(b'{"input": {"\\ud800": 1}}', b'{"input": 1, "unknown": "\\ud800"}', b'{"input": "\xed\xa0\x80"}'),
        *(b'{"input": "\xff"}', b'{"input": 1, "unknown": "\xff"}', b'{"inp\xfft": 1}', b'{"input": "\xc0\xaf"}'),
        *(b"\xef\xbb\xbf" + b'{"input": 1}', '{"input": 1}'.encode("utf-16"), '{"input": 1}'.encode("utf-32")),
        *(b"\x00", b'{"input": 1}\x00', b"\x1f\x8b\x08\x00", b"input=1", b"<input>1</input>", b"/* */ {}"),
        *(b'{"input": 1, "input": 2}', b'{"input": 1, "model": "echo", "m\\u006fdel": "moody"}'),
        *(b'{"input": {"a": 1, "a": 2}}', b'{"input": 1, "parameters": {"b": [{"c": 1, "c": 1}]}}'),
    ):
        answer = api.call("POST", "/v1/inference", raw=raw)
        assert (answer.status, answer.error) == (400, "INVALID_JSON"), raw


def test_bodies_of_json_that_are_no_request(api: Api) -> None:
    for raw in (
        *(b"null", b"1", b'"input"', b"[]", b"[1]", b"{}", b'{"Input": 1}', b'{"input_data": 1}', b'{"inputs": []}'),
        *(b'{"input": 1e999}', b'{"input": -1e999}', b'{"input": [[1e400]]}', b'{"input": ' + b"9" * 5000 + b"}"),
        *(b'{"input": 1, "timeout_ms": 1e999}', b'{"input": 1, "timeout_ms": -0.5}', b'{"input": 1, "timeout_ms": {}}'),
        *(b'{"input": 1, "model": []}', b'{"input": 1, "parameters": "p"}', b'{"input": 1, "client_id": {}}'),
    ):
        answer = api.call("POST", "/v1/inference", raw=raw)
        assert (answer.status, answer.error) == (400, "INVALID_INPUT"), raw


def test_nesting_without_end(api: Api) -> None:
    for levels in (MAX_DEPTH, 900, 990, 1000, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            nested = opening * levels + "1" + closing * levels
            answer = api.call("POST", "/v1/inference", raw=f'{{"input": {nested}}}'.encode())
            assert (answer.status, answer.error) == (400, "INVALID_JSON"), levels
    unclosed = api.call("POST", "/v1/inference", raw=b'{"input": ' + b"[" * 1_000_000)
    assert (unclosed.status, unclosed.error) == (400, "INVALID_JSON")


def test_one_byte_more_than_the_limit(stack: Stack) -> None:
    for path in ("/v1/inference", "/v1/inference/bulk", "/v1/predict", "/api/inference", "/healthz", "/nothing"):
        with Client(stack.port) as client:
            head = f"POST {path} HTTP/1.1\r\nHost: test\r\n{JSON}\r\nContent-Length: {LIMIT + 1}\r\n\r\n"
            # Refused by what it announces: none of it need be sent.
            assert code_of(client, head.encode()) == (413, "PAYLOAD_TOO_LARGE")
            assert client.is_closed()


def test_ten_megabytes(stack: Stack, api: Api) -> None:
    body = b'{"input": "' + b"x" * 10 * LIMIT + b'"}'
    with Client(stack.port) as client:
        assert code_of(client, post("/v1/inference", body, JSON)) == (413, "PAYLOAD_TOO_LARGE")
    chunk = b"%x\r\n%b\r\n" % (64 * 1024, b"x" * 64 * 1024)
    with Client(stack.port) as client:
        client.send(
            f"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(17):
            client.send(chunk)
        answer = client.answer()
        assert (answer.status, answer.json["error"]) == (413, "PAYLOAD_TOO_LARGE")


def test_a_hundred_thousand_headers(stack: Stack) -> None:
    head = b"POST /v1/inference HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n"
    with Client(stack.port) as client:
        client.send(head)
        # Refused long before the last one: the rest may find nobody who reads.
        with contextlib.suppress(OSError):
            client.send(b"".join(b"X-%d: x\r\n" % n for n in range(100_000)) + b"\r\n{}")
        answer = client.answer()
        assert (answer.status, answer.json["error"]) == (431, "INVALID_HEADER")


VALID = b'{"input": 1}'
FRAMING = {
    "two lengths": "Content-Length: 12\r\nContent-Length: 12",
    "two lengths that differ": "Content-Length: 12\r\nContent-Length: 0",
    "a list of lengths": "Content-Length: 12, 12",
    "length and chunked": "Content-Length: 12\r\nTransfer-Encoding: chunked",
    "chunked and length": "Transfer-Encoding: chunked\r\nContent-Length: 4",
    "a negative length": "Content-Length: -12",
    "a length with a sign": "Content-Length: +12",
    "a hexadecimal length": "Content-Length: 0xc",
    "a length of words": "Content-Length: twelve",
    "a length beyond all numbers": "Content-Length: 99999999999999999999999999",
    "an unknown coding": "Transfer-Encoding: gzip, chunked",
    "chunked twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "chunked not last": "Transfer-Encoding: chunked, identity",
    "chunked, almost": "Transfer-Encoding: xchunked",
    "chunked behind a tab": "Transfer-Encoding:\x0bchunked",
    "a blank before the colon": "Content-Length : 12",
    "a folded length": "Content-Length:\r\n 12",
    "a bare line feed": "Content-Length: 12\nX: y",
    "a bare carriage return": "Content-Length: 12\rX: y",
    "a NUL": "Content-Length: 12\r\nX: a\0b",
    "no name": "Content-Length: 12\r\n: nothing",
    "no colon": "Content-Length: 12\r\nnothing",
    "two hosts": "Content-Length: 12\r\nHost: other",
}


@pytest.mark.parametrize("fields", FRAMING.values(), ids=FRAMING.keys())
def test_a_request_whose_end_is_in_doubt(stack: Stack, fields: str) -> None:
    smuggled = (
        b"POST /v1/inference HTTP/1.1\r\nHost: test\r\n" + JSON.encode() + b"\r\nContent-Length: 12\r\n\r\n" + VALID
    )
    head = f"POST /v1/inference HTTP/1.1\r\nHost: test\r\n{JSON}\r\n{fields}\r\n\r\n".encode("latin-1")
    with Client(stack.port) as client:
        status, error = code_of(client, head + VALID + smuggled)
        assert status in {400, 413, 501}
        assert error in {"INVALID_INPUT", "INVALID_HEADER", "PAYLOAD_TOO_LARGE"}
        # What follows is the rest of it, or a request; nobody can know, so nobody reads it.
        assert client.is_closed()


CHUNKS = {
    "cut short": b"c\r\n" + VALID[:5],
    "without its end": b"c\r\n" + VALID + b"\r\n",
    "longer than its size": b"b\r\n" + VALID + b"\r\n0\r\n\r\n",
    "a size of nothing": b"\r\n" + VALID + b"\r\n0\r\n\r\n",
    "a size of words": b"twelve\r\n" + VALID + b"\r\n0\r\n\r\n",
    "a negative size": b"-c\r\n" + VALID + b"\r\n0\r\n\r\n",
    "a size with 0x": b"0xc\r\n" + VALID + b"\r\n0\r\n\r\n",
    "a size beyond all numbers": b"f" * 40 + b"\r\n" + VALID,
    "bare line feeds": b"c\n" + VALID + b"\n0\n\n",
    "a bad trailer": b"c\r\n" + VALID + b"\r\n0\r\nnothing\r\n\r\n",
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_chunks_that_are_none(stack: Stack, chunks: bytes) -> None:
    head = f"POST /v1/inference HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Client(stack.port) as client:
        client.send(head + chunks)
        client.socket.shutdown(1)
        answer = client.answer()
        assert answer.status in {400, 413}
        assert answer.json["error"] in {"INVALID_INPUT", "PAYLOAD_TOO_LARGE"}
        assert client.is_closed()


@pytest.mark.parametrize(
    "line",
    [
        *("GET", "GET /", "GET / HTTP/2.0", "GET / HTTP/0.9", "get / HTTP/1.1", "GET  / HTTP/1.1", "GET / HTTP/1.1 x"),
        *("GET /a b HTTP/1.1", "GET http:// HTTP/1.1", "GET /\x00 HTTP/1.1", "GET /ü HTTP/1.1", "\x16\x03\x01\x02"),
        *("PRI * HTTP/2.0", "GET / RTSP/1.0", "G(T / HTTP/1.1", "GET /#x HTTP/1.1"),
    ],
)
def test_a_request_line_that_is_none(stack: Stack, line: str) -> None:
    with Client(stack.port) as client:
        client.send(line.encode("latin-1") + b"\r\nHost: test\r\n\r\n")
        answer = client.answer()
        assert (answer.status, answer.json["error"]) == (400, "INVALID_INPUT")
        assert client.is_closed()


def test_a_path_or_header_that_is_too_long(stack: Stack) -> None:
    with Client(stack.port) as client:
        assert code_of(client, f"GET /{'a' * 9000} HTTP/1.1\r\nHost: t\r\n\r\n".encode())[0] == 414
    with Client(stack.port) as client:
        head = f"GET /healthz HTTP/1.1\r\nHost: t\r\nX-Long: {'a' * 100_000}\r\n\r\n"
        assert code_of(client, head.encode()) == (431, "INVALID_HEADER")
