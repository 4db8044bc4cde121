"""One attempt to deliver a callback: resolve, check every address, connect to a checked one, POST, read the status.

    resolve ─▶ addresses ─▶ one that `Target.require` refuses: ForbiddenTarget     not looked up again: what was checked
                │                                                                  is what is connected to
                ▼
              connect, TLS, send, status ─▶ Unreachable: the host, not this one request
                │
                ▼
              2xx taken · anything else NotTaken, redirects among them: they would lead past the check

Everything has to happen within one time limit, however slowly a receiver talks. Its answer's body is not read.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Sequence
from http import HTTPStatus

from config.allowed_hosts import ForbiddenTarget, Target
from tasks.pinned_connection import Resolve, checked, connected, left_s, resolve

TIMEOUT_S = 10.0
_MAX_HEAD = 16_384
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_RETRY_AFTER = re.compile(rb"^retry-after:[ \t]*([0-9]{1,6})[ \t]*$", re.IGNORECASE | re.MULTILINE)


class NotTaken(Exception):
    """`NotTaken(why, status, retry_after_s)`: the receiver answered, and did not take it."""

    def __init__(self, why: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(why, status, retry_after_s)
        self.why, self.status, self.retry_after_s = why, status, retry_after_s


class Unreachable(Exception):
    """`Unreachable(why)`: no answer. Other requests for the same host would have the same fate."""


def deliver(
    target: Target,
    body: bytes,
    headers: Sequence[tuple[str, str]],
    *,
    timeout_s: float = TIMEOUT_S,
    resolve: Resolve = resolve,
    tls: ssl.SSLContext | None = None,
) -> None:
    """POST `body` as JSON; returns once the receiver has taken it.

    Raises:
        ForbiddenTarget: the host has an address to which nothing may be sent.
        NotTaken: it answered with another status than 2xx.
        Unreachable: it did not answer.
    """
    until = time.monotonic() + timeout_s
    try:
        with connected(target, checked(target, resolve), until, tls) as connection:
            connection.settimeout(left_s(until))
            connection.sendall(_request(target, body, headers))
            _require_taken(_head(connection, until))
    except ForbiddenTarget:
        raise
    except TimeoutError as error:
        raise Unreachable(f"{target.place} did not answer within {timeout_s:g} s") from error
    except (OSError, ValueError) as error:
        raise Unreachable(f"{target.place}: {error}") from error


def _request(target: Target, body: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.place}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _head(connection: socket.socket, until: float) -> bytes:
    """The status line and headers of the final answer: informational ones may come before."""
    read = b""
    while True:
        head, end, rest = read.partition(b"\r\n\r\n")
        if end and not head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):
            return head
        if end:
            read = rest
            continue
        if len(read) > _MAX_HEAD:
            raise ValueError(f"the head of its answer is longer than {_MAX_HEAD} bytes")
        connection.settimeout(left_s(until))
        more = connection.recv(4096)
        if not more:
            raise ValueError("it closed the connection without an answer")
        read += more


def _require_taken(head: bytes) -> None:
    found = _STATUS.match(head)
    if not found:
        raise ValueError("its answer is not HTTP")
    status = int(found[1])
    if status // 100 == HTTPStatus.OK // 100:
        return
    after = _RETRY_AFTER.search(head.replace(b"\r\n", b"\n"))
    told = f"status {status}" + (", a redirect, which is not followed" if status // 100 == 3 else "")
    raise NotTaken(told, status, float(after[1]) if after else 0.0)
