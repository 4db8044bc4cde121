"""Inputs that are fetched: `{"$ref": "https://…", "sha256": "…"}`, for models that take bytes.

    frontend: is its host allowed?        worker: begin ─▶ a thread: resolve, check the address, GET ─▶ result
                                                   │                                                     │
                                                   └── not there yet: the request is put aside, without ──┘
                                                       an attempt, and its batch goes without it

A host that is slow delays nobody but those who named it. A redirect is refused, since it would lead past the check, and
so is whatever is larger than a body may be. Who fetches is a worker: the caller's own rights are in the URL.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

import msgspec

from batching.request import Failed, Rejected, Request
from config.allowed_hosts import ForbiddenTarget, RefHosts, Target
from config.version import VERSION
from tasks.pinned_connection import Resolve, checked, connected, left_s, resolve

REF = "$ref"
TIMEOUT_S = 10.0
_AT_ONCE = 8
# Whatever was fetched and not taken, because another worker has the request now, is dropped after this.
_KEPT_S = 30.0
_READ_BYTES = 1 << 18
_BEGINS = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"\$ref"[ \t\r\n]*:')
_OK = 200
_TOO_LARGE = "PayloadTooLarge"


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an input is, and the hash that its sender expects, if any."""

    url: Annotated[str, msgspec.Meta(max_length=8192)] = msgspec.field(name=REF)
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")] = ""


decode = msgspec.json.Decoder(Reference).decode
encode = msgspec.json.Encoder().encode


def refers(value: bytes) -> bool:
    """Return whether the JSON of an input is a reference, or looks like one."""
    return _BEGINS.match(value) is not None


class NotFetched(Exception):
    """`NotFetched(why, exc_type)`: the host's answer is not an input."""

    def __init__(self, why: str, exc_type: str = "InputRejected") -> None:
        super().__init__(why, exc_type)
        self.why, self.exc_type = why, exc_type


class Unreachable(Exception):
    """`Unreachable(why)`: the host does not answer; it may the next time."""


def fetch(
    target: Target,
    most_bytes: int,
    timeout_s: float = TIMEOUT_S,
    *,
    resolve: Resolve = resolve,
    tls: ssl.SSLContext | None = None,
) -> bytearray:
    """GET a URL, with everything within `timeout_s`.

    Raises:
        ForbiddenTarget: the host has an address that may not be called.
        NotFetched: the answer is another status than 200, or too large.
        Unreachable: there is no answer, or it breaks off.
    """
    until = time.monotonic() + timeout_s
    try:
        with connected(target, checked(target, resolve), until, tls) as connection:
            # A host that sends a byte now and then would be within every limit of a single read.
            watch = threading.Timer(left_s(until), _end, (connection,))
            watch.daemon = True
            watch.start()
            try:
                connection.settimeout(left_s(until))
                return _body(target, connection, most_bytes)
            finally:
                watch.cancel()
    except (ForbiddenTarget, NotFetched):
        raise
    except TimeoutError as error:
        raise Unreachable(f"{REF}: {target.place} did not answer within {timeout_s:.3g} s") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreachable(f"{REF}: {target.place}: {error}") from error


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _body(target: Target, connection: socket.socket, most_bytes: int) -> bytearray:
    exchange = http.client.HTTPConnection(target.host, target.port)
    exchange.sock = connection
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close", "User-Agent": f"bunch/{VERSION}"}
    exchange.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": target.place, **headers}.items():
        exchange.putheader(name, value)
    exchange.endheaders()
    with exchange.getresponse() as answer:
        return _content(target, answer, most_bytes)


def _content(target: Target, answer: http.client.HTTPResponse, most_bytes: int) -> bytearray:
    if answer.status != _OK:
        redirect = ", a redirect, which is not followed" if answer.status // 100 == 3 else ""
        raise NotFetched(f"{REF}: {target.place} answers with status {answer.status}{redirect}")
    if answer.getheader("Content-Encoding", "identity").lower() != "identity":
        raise NotFetched(f"{REF}: {target.place} sends it compressed, though it was not asked to")
    too_large = NotFetched(f"{REF}: {target.place} has more than {most_bytes} bytes (BUNCH_BLOB_MAX_BYTES)", _TOO_LARGE)
    if (answer.length or 0) > most_bytes:
        raise too_large
    found = bytearray()
    while more := answer.read(_READ_BYTES):
        found += more
        if len(found) > most_bytes:
            raise too_large
    if answer.length:
        raise OSError("it broke off")
    return found


@dataclass(slots=True)
class _Fetch:
    future: Future[bytearray]
    ends_at: float


Outcome = bytearray | Rejected | Failed


class ReferencedInputs:
    """What one worker fetches for the requests of one model. `hosts` are those that may be called.

    Args:
        most_bytes: the limit of an input.
        fetch: as `fetch`.
    """

    def __init__(
        self,
        hosts: RefHosts,
        most_bytes: int,
        fetch: Callable[..., bytearray] = fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = hosts
        self._most_bytes = most_bytes
        self._fetch = fetch
        self._clock = clock
        self._under_way: dict[str, _Fetch] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "fetch")

    def refers(self, value: bytes) -> bool:
        return refers(value)

    def begin(self, request: Request, left_s: float) -> None:
        """Begin to fetch the input of a request that has `left_s` seconds, unless that has begun before."""
        now = self._clock()
        for task_id in [task_id for task_id, each in self._under_way.items() if each.ends_at <= now]:
            self._under_way.pop(task_id).future.cancel()
        if request.id not in self._under_way:
            timeout_s = min(TIMEOUT_S, left_s)
            future = self._pool.submit(self._fetched, request.input, timeout_s)
            self._under_way[request.id] = _Fetch(future, now + timeout_s + _KEPT_S)

    def result(self, request: Request, wait_s: float) -> Outcome | None:
        """The input, or the outcome in its place; None if it is not there within `wait_s`."""
        try:
            value = self._under_way[request.id].future.result(max(0.0, wait_s))
        except NotDone:
            return None
        except NotFetched as error:
            outcome: Outcome = Rejected(error.why, error.exc_type)
        except Unreachable as error:
            outcome = Failed(str(error), "PayloadGone", "BACKEND_UNAVAILABLE", retryable=True)
        except Exception as error:  # noqa: BLE001 - it is this request's alone
            outcome = Failed(f"{REF}: could not be fetched: {error!r}", code="INTERNAL")
        else:
            outcome = value
        del self._under_way[request.id]
        return outcome

    def _fetched(self, value: bytes, timeout_s: float) -> bytearray:
        try:
            ref = decode(value)
            target = self._hosts.target(ref.url)
            found = self._fetch(target, self._most_bytes, timeout_s)
        except msgspec.MsgspecError as error:
            raise NotFetched(f"{REF}: {error}", "InvalidInput") from error
        except ForbiddenTarget as error:
            raise NotFetched(f"{REF}: {error}") from error
        if ref.sha256 and sha256(found).hexdigest() != ref.sha256:
            raise NotFetched(f"{REF}: {target.place} has other bytes: their SHA-256 is not the one that was sent")
        return found
