"""Inputs that are fetched: `{"$ref": "https://…", "sha256": "…"}`, for models that take bytes.

    frontend: is its host allowed?        worker: begin ─▶ a thread: resolve, check the address, GET ─▶ result
                                                   │                                                     │
                                                   └── not there yet: the request is put aside, without ──┘
                                                       an attempt, and its batch goes without it

A host that is slow delays nobody but those who named it: each has threads of its own (`tasks.lanes`). What is held, or
being received, has a limit in bytes; further answers wait at their hosts. A redirect is refused, since it would lead
past the check, and so is whatever is larger than a body may be. Who fetches is a worker: the caller's own rights are in
the URL.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Annotated

import msgspec

from batching.claim.payloads import MAX_READ_BYTES
from batching.request import Failed, Rejected, Request
from config.allowed_hosts import ForbiddenTarget, RefHosts, Target
from config.version import VERSION
from tasks.lanes import Lanes
from tasks.pinned_connection import Resolve, checked, connected, left_s, resolve

REF = "$ref"
TIMEOUT_S = 10.0
_AT_ONCE_OF_A_HOST = 8
_AT_ONCE = 64
# Whatever was fetched and not taken, because another worker has the request now, is dropped after this.
_KEPT_S = 30.0
_READ_BYTES = 1 << 18
_BEGINS = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"\$ref"[ \t\r\n]*:')
_OK = 200
_TOO_LARGE = "PayloadTooLarge"


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an input is, and the hash that its sender expects, if any."""

    url: Annotated[str, msgspec.Meta(max_length=RefHosts.max_url)] = msgspec.field(name=REF)
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
    reserve: Callable[[int], None] = lambda most_bytes: None,
    resolve: Resolve = resolve,
    tls: ssl.SSLContext | None = None,
) -> bytearray:
    """GET a URL, with everything within `timeout_s`. `reserve` is called before the body is read, with the bytes that
    it may have.

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
                found = _body(target, connection, most_bytes, reserve)
                # What has no length ends with the connection, and so it would where the watch has ended that.
                left_s(until)
                return found
            finally:
                watch.cancel()
    except (ForbiddenTarget, NotFetched, Unreachable):
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


def _body(target: Target, connection: socket.socket, most_bytes: int, reserve: Callable[[int], None]) -> bytearray:
    exchange = http.client.HTTPConnection(target.host, target.port)
    exchange.sock = connection
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close", "User-Agent": f"bunch/{VERSION}"}
    exchange.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": target.place, **headers}.items():
        exchange.putheader(name, value)
    exchange.endheaders()
    with exchange.getresponse() as answer:
        return _content(target, answer, most_bytes, reserve)


def _content(
    target: Target, answer: http.client.HTTPResponse, most_bytes: int, reserve: Callable[[int], None]
) -> bytearray:
    if answer.status != _OK:
        redirect = ", a redirect, which is not followed" if answer.status // 100 == 3 else ""
        raise NotFetched(f"{REF}: {target.place} answers with status {answer.status}{redirect}")
    if answer.getheader("Content-Encoding", "identity").lower() != "identity":
        raise NotFetched(f"{REF}: {target.place} sends it compressed, though it was not asked to")
    too_large = NotFetched(f"{REF}: {target.place} has more than {most_bytes} bytes (BUNCH_BLOB_MAX_BYTES)", _TOO_LARGE)
    if (answer.length or 0) > most_bytes:
        raise too_large
    reserve(most_bytes if answer.length is None else answer.length)
    found = bytearray()
    while more := answer.read(_READ_BYTES):
        found += more
        if len(found) > most_bytes:
            raise too_large
    if answer.length:
        raise OSError("it broke off")
    return found


class _Room:
    """Bytes that all fetches of one worker's model may hold together."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = self.left_bytes = most_bytes
        self._changed = threading.Condition()

    def take(self, size: int, timeout_s: float) -> bool:
        """Wait for so many bytes; False: there were none in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.left_bytes >= size, timeout_s):
                return False
            self.left_bytes -= size
            return True

    def give_back(self, size: int) -> None:
        with self._changed:
            self.left_bytes += size
            self._changed.notify_all()


@dataclass(slots=True)
class _Fetch:
    future: Future[bytearray]
    ends_at: float


Outcome = bytearray | Rejected | Failed


class ReferencedInputs:
    """What one worker fetches for the requests of one model. `hosts` are those that may be called.

    Args:
        most_bytes: the limit of an input.
        held_bytes: the limit of all that are being received, or wait for their requests.
        fetch: as `fetch`.
        kept_s: how long what nobody takes is kept: another worker may have the request now.
    """

    def __init__(
        self,
        hosts: RefHosts,
        most_bytes: int,
        fetch: Callable[..., bytearray] = fetch,
        clock: Callable[[], float] = time.monotonic,
        *,
        held_bytes: int = MAX_READ_BYTES,
        kept_s: float = _KEPT_S,
    ) -> None:
        self._hosts = hosts
        self._most_bytes = most_bytes
        self._fetch = fetch
        self._clock = clock
        self._kept_s = kept_s
        self._room = _Room(max(held_bytes, most_bytes))
        self._lanes: Lanes[bytearray] = Lanes(_AT_ONCE_OF_A_HOST, _AT_ONCE)
        # The thread of a timer drops what is past its end.
        self._lock = threading.Lock()
        self._under_way: dict[str, _Fetch] = {}
        self._timer: threading.Timer | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes that are being received, or wait for their requests."""
        return self._room.most_bytes - self._room.left_bytes

    def refers(self, value: bytes) -> bool:
        return refers(value)

    def begin(self, request: Request, left_s: float) -> None:
        """Begin to fetch the input of a request that has `left_s` seconds, unless that has begun before."""
        with self._lock:
            if request.id not in self._under_way:
                until = self._clock() + min(TIMEOUT_S, left_s)
                self._under_way[request.id] = _Fetch(self._begun(request.input, until), until + self._kept_s)
                self._look_later()

    def result(self, request: Request, wait_s: float, most_bytes: int | None = None) -> Outcome | None:
        """The input, or the outcome in its place; None if it is not there within `wait_s`, or larger than
        `most_bytes`.
        """
        with self._lock:
            fetch = self._under_way.get(request.id)
        try:
            value = fetch.future.result(max(0.0, wait_s)) if fetch is not None else None
        except NotDone:
            return None
        except NotFetched as error:
            outcome: Outcome = Rejected(error.why, error.exc_type)
        except Unreachable as error:
            outcome = Failed(str(error), "PayloadGone", "BACKEND_UNAVAILABLE", retryable=True)
        except Exception as error:  # noqa: BLE001 - it is this request's alone
            outcome = Failed(f"{REF}: could not be fetched: {error!r}", code="INTERNAL")
        else:
            if value is None or (most_bytes is not None and len(value) > most_bytes):
                return None
            outcome = value
        with self._lock:
            mine = self._under_way.pop(request.id, None) is not None
        if isinstance(outcome, bytearray) and mine:
            self._room.give_back(len(outcome))
        return outcome

    def _look_later(self) -> None:
        """Drop what nobody has taken, once it is past its end, also if no further request comes."""
        if self._timer is None and self._under_way:
            next_s = min(each.ends_at for each in self._under_way.values()) - self._clock()
            self._timer = threading.Timer(max(0.1, next_s), self._drop_old)
            self._timer.daemon = True
            self._timer.start()

    def _drop_old(self) -> None:
        with self._lock:
            now = self._clock()
            for task_id in [task_id for task_id, each in self._under_way.items() if each.ends_at <= now]:
                future = self._under_way.pop(task_id).future
                future.cancel()
                future.add_done_callback(self._unused)
            self._timer = None
            self._look_later()

    def _unused(self, future: Future[bytearray]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._room.give_back(len(future.result()))

    def _begun(self, value: bytes, until: float) -> Future[bytearray]:
        try:
            ref = decode(value)
            target = self._hosts.target(ref.url)
        except msgspec.MsgspecError as error:
            wrong = NotFetched(f"{REF}: {error}", "InvalidInput")
        except ForbiddenTarget as error:
            wrong = NotFetched(f"{REF}: {error}")
        else:
            return self._lanes.submit(target.host, partial(self._fetched, ref, target, until))
        refused: Future[bytearray] = Future()
        refused.set_exception(wrong)
        return refused

    def _fetched(self, ref: Reference, target: Target, until: float) -> bytearray:
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            if not self._room.take(size, until - self._clock()):
                raise Unreachable(f"{REF}: this worker has no memory for it now; try again shortly")
            reserved = size

        found = bytearray()
        try:
            timeout_s = until - self._clock()
            if timeout_s <= 0:
                raise Unreachable(f"{REF}: {target.place} has too many other inputs to answer; try again shortly")
            given = self._fetch(target, self._most_bytes, timeout_s, reserve=reserve)
            if ref.sha256 and sha256(given).hexdigest() != ref.sha256:
                raise NotFetched(f"{REF}: {target.place} has other bytes: their SHA-256 is not the one that was sent")
            found = given
        except ForbiddenTarget as error:
            raise NotFetched(f"{REF}: {error}") from error
        finally:
            self._room.give_back(reserved - len(found))
        return found
