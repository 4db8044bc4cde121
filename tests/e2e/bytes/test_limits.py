"""Bodies that lie about their length, or that nobody takes: neither received nor unpacked."""

from __future__ import annotations

import socket
import zlib

import pytest

from tests.e2e.bytes.sent import MOST_BYTES
from tests.e2e.client import Api


def head(api: Api, length: str, content_type: str, path: str = "/v1/inference", more: str = "") -> bytes:
    """The beginning of the answer to a request whose body never comes."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as sock:
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n{length}\r\n{more}".encode()
        )
        return sock.recv(64)


def test_a_length_that_lies_costs_no_memory_and_no_time(api: Api) -> None:
    for length in (MOST_BYTES + 1, 10**13, 10**19):
        for kind in ("image/png", "multipart/form-data; boundary=b", "application/json"):
            assert b" 413 " in head(api, f"Content-Length: {length}\r\n", kind)
    chunk = f"{MOST_BYTES + 1:x}\r\n"
    assert b" 413 " in head(api, "Transfer-Encoding: chunked\r\n", "image/png", more=chunk)
    assert b" 100 " in head(api, f"Content-Length: {MOST_BYTES}\r\nExpect: 100-continue\r\n", "image/png")


@pytest.mark.parametrize(
    "path", ["/v1/inference?model=echo", "/v1/inference?model=arrays", "/v1/inference?model=tables"]
)
def test_a_body_that_its_model_does_not_take_is_not_received(api: Api, path: str) -> None:
    assert b" 415 " in head(api, f"Content-Length: {MOST_BYTES}\r\n", "image/png", path)


@pytest.mark.parametrize("content_type", ["image/png", "application/x-npy", "multipart/form-data; boundary=b"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "zstd"])
def test_compressed_bytes_are_not_unpacked(api: Api, content_type: str, encoding: str) -> None:
    bomb = zlib.compress(bytes(2_000_000), 9)
    answer = api.call("POST", "/v1/inference", raw=bomb, Content_Type=content_type, Content_Encoding=encoding)
    assert (answer.status, answer.error) == (415, "UNSUPPORTED_MEDIA_TYPE")
