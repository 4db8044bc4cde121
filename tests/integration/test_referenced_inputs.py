"""Inputs that are fetched from a URL: from a host that behaves, and from hosts that do not."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from batching.request import Failed, Rejected, Request
from config.allowed_hosts import ForbiddenTarget, RefHosts
from config.tiers import Tier
from tasks.protocol.results import code_of
from tasks.referenced_inputs import NotFetched, ReferencedInputs, Unreachable, fetch, refers
from tests.waiting import wait_until

HOSTS = RefHosts("127.0.0.1, *.example.org")
MOST_BYTES = 1000
IMAGE = bytes(range(256)) * 3


@contextlib.contextmanager
def answering(*answers: bytes | Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that gives each connection the next answer, the last one for ever; the URL of something on it."""
    left = list(answers)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    answer = left.pop(0) if len(left) > 1 else left[0]
                    threading.Thread(target=give, args=(connection, answer), daemon=True).start()

        def give(connection: socket.socket, answer: bytes | Callable[[socket.socket], None]) -> None:
            with connection, contextlib.suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head:
                    # Nothing: who is late has given up before its request.
                    if not (more := connection.recv(4096)):
                        return
                    head += more
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/cat.png?signature=s3cret"
        server.shutdown(socket.SHUT_RDWR)


def ok(body: bytes = IMAGE, *headers: str, length: int | None = None) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_what_is_there_is_fetched() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    with answering(ok(), chunked, b"HTTP/1.0 200 OK\r\n\r\nto the end") as url:
        target = HOSTS.target(url)
        assert fetch(target, MOST_BYTES) == IMAGE
        assert fetch(target, MOST_BYTES) == b"abcdefg"
        assert fetch(target, MOST_BYTES) == b"to the end"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "not followed"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "status 403"),
        (ok(IMAGE, "Content-Encoding: gzip"), "compressed"),
        (ok(b"", length=MOST_BYTES + 1), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MOST_BYTES + 1), "more than 1000 bytes"),
    ],
)
def test_another_answer_is_refused(answer: bytes, says: str) -> None:
    with answering(answer) as url, pytest.raises(NotFetched, match=says) as raised:
        fetch(HOSTS.target(url), MOST_BYTES)
    # It may be a secret.
    assert "s3cret" not in str(raised.value)


def dribbles(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    for _ in range(500):
        connection.sendall(b"x")
        time.sleep(0.05)


def holds_its_head(connection: socket.socket) -> None:
    for _ in range(500):
        connection.sendall(b"H")
        time.sleep(0.05)


def dribbles_to_its_end(connection: socket.socket) -> None:
    """Its length is not said: it ends with the connection."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    for _ in range(500):
        connection.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize("slow", [dribbles, dribbles_to_its_end, holds_its_head, lambda _: time.sleep(5)])
def test_a_host_has_so_much_time_altogether(slow: Callable[[socket.socket], None]) -> None:
    began = time.monotonic()
    with answering(slow) as url, pytest.raises(Unreachable):
        fetch(HOSTS.target(url), MOST_BYTES, timeout_s=0.3)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("answer", [b"", b"no HTTP at all\r\n\r\n", ok(IMAGE, length=len(IMAGE) + 1)])
def test_an_answer_that_breaks_off_is_none(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(Unreachable):
        fetch(HOSTS.target(url), MOST_BYTES)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254", "::ffff:10.1.1.1"]
)
def test_a_name_may_not_lead_to_a_private_address(address: str) -> None:
    target = HOSTS.target("https://cats.example.org/cat.png")
    with pytest.raises(ForbiddenTarget):
        fetch(target, MOST_BYTES, resolve=lambda host, port: ["93.184.215.14", address])


@pytest.mark.parametrize(
    "url",
    ["https://other.example.com/", "http://cats.example.org/", "file:///etc/passwd", "https://u:p@a.example.org/"],
)
def test_only_hosts_that_are_named_are_called(url: str) -> None:
    with pytest.raises(ForbiddenTarget):
        HOSTS.target(url)


def request_of(task_id: str = "task", **reference: str) -> Request:
    return Request(task_id, Tier.PAID, 1, msgspec.json.encode(reference), b"{}")


def fetched(inputs: ReferencedInputs, request: Request) -> bytearray | Rejected | Failed:
    inputs.begin(request, 5.0)
    return wait_until(lambda: inputs.result(request, 0.01))


def test_a_request_gets_its_bytes_and_their_hash_is_checked() -> None:
    inputs = ReferencedInputs(HOSTS, MOST_BYTES)
    with answering(ok()) as url:
        digest = hashlib.sha256(IMAGE).hexdigest()
        assert fetched(inputs, request_of(**{"$ref": url})) == IMAGE
        assert fetched(inputs, request_of(**{"$ref": url, "sha256": digest})) == IMAGE
        wrong = fetched(inputs, request_of(**{"$ref": url, "sha256": "0" * 64}))
    assert isinstance(wrong, Rejected)
    assert "other bytes" in wrong.message
    assert code_of(wrong) == "INPUT_REJECTED"


def test_each_fault_has_its_code() -> None:
    inputs = ReferencedInputs(HOSTS, MOST_BYTES)
    with answering(ok(b"x" * (MOST_BYTES + 1))) as url:
        assert code_of(fetched(inputs, request_of(**{"$ref": url}))) == "PAYLOAD_TOO_LARGE"  # type: ignore[arg-type]
    assert code_of(fetched(inputs, request_of(**{"$ref": "https://10.0.0.1/"}))) == "INPUT_REJECTED"  # type: ignore[arg-type]
    assert code_of(fetched(inputs, request_of(**{"$ref": url, "more": "x"}))) == "INVALID_INPUT"  # type: ignore[arg-type]
    # Nobody listens there any more: it may be there again.
    away = fetched(inputs, request_of(**{"$ref": url}))
    assert isinstance(away, Failed)
    assert (away.code, away.retryable) == ("BACKEND_UNAVAILABLE", True)


def test_what_is_asked_for_again_is_fetched_once_and_nobody_waits_for_it() -> None:
    released = threading.Event()

    def slow(connection: socket.socket) -> None:
        released.wait(10)
        connection.sendall(ok())

    inputs = ReferencedInputs(HOSTS, MOST_BYTES)
    with answering(slow, b"") as url:
        request = request_of(**{"$ref": url})
        for _ in range(3):
            inputs.begin(request, 5.0)
            assert inputs.result(request, 0.01) is None
        released.set()
        assert fetched(inputs, request) == IMAGE


def test_a_host_that_is_slow_delays_nobody_who_has_named_another() -> None:
    released = threading.Event()
    hosts = RefHosts("127.0.0.1, localhost")
    inputs = ReferencedInputs(hosts, MOST_BYTES)
    with answering(lambda _: released.wait(10)) as slow, answering(ok()) as quick:
        waiting = [request_of(f"slow {n}", **{"$ref": slow}) for n in range(20)]
        for each in waiting:
            inputs.begin(each, 9.0)
        assert fetched(inputs, request_of(**{"$ref": quick.replace("127.0.0.1", "localhost")})) == IMAGE
        assert all(inputs.result(each, 0.0) is None for each in waiting)
        released.set()


def test_what_has_waited_behind_a_slow_host_has_no_more_time_than_its_request() -> None:
    released, called, now = threading.Event(), [], [0.0]

    def slow(target: object, most_bytes: int, timeout_s: float, **_: object) -> bytearray:
        called.append(timeout_s)
        released.wait(10)
        return bytearray(IMAGE)

    inputs = ReferencedInputs(HOSTS, MOST_BYTES, slow, lambda: now[0])
    requests = [request_of(f"task {n}", **{"$ref": "http://127.0.0.1/"}) for n in range(10)]
    for each in requests:
        inputs.begin(each, 2.0)
    wait_until(lambda: len(called) == 8)
    now[0] = 1.5
    inputs.begin(late := request_of("late", **{"$ref": "http://127.0.0.1/"}), 2.0)
    now[0] = 3.0
    released.set()
    assert wait_until(lambda: inputs.result(late, 0.01)) == IMAGE
    assert called == [2.0] * 8 + [0.5]
    assert all(isinstance(inputs.result(each, 5.0), Failed) for each in requests[8:])


def test_what_is_held_has_a_limit_and_makes_room_when_it_is_taken() -> None:
    inputs = ReferencedInputs(HOSTS, MOST_BYTES, held_bytes=2 * len(IMAGE) + 10)
    with answering(ok()) as url:
        requests = [request_of(f"task {n}", **{"$ref": url}) for n in range(6)]
        for each in requests:
            inputs.begin(each, 9.0)
        wait_until(lambda: inputs.held_bytes == 2 * len(IMAGE))
        # No further answer is read before one is taken.
        taken = 0
        while taken < len(requests):
            assert inputs.held_bytes <= 2 * len(IMAGE)
            taken += sum(inputs.result(each, 0.02) == IMAGE for each in requests)
        wait_until(lambda: inputs.held_bytes == 0)


def test_one_that_is_too_large_for_the_rest_of_its_batch_stays_for_the_next() -> None:
    inputs = ReferencedInputs(HOSTS, MOST_BYTES)
    with answering(ok()) as url:
        request = request_of(**{"$ref": url})
        inputs.begin(request, 9.0)
        wait_until(lambda: inputs.held_bytes == len(IMAGE))
        assert inputs.result(request, 5.0, len(IMAGE) - 1) is None
        assert inputs.result(request, 5.0, len(IMAGE)) == IMAGE


def test_what_nobody_takes_is_dropped_also_if_nothing_more_comes() -> None:
    held: list[int] = []

    def watched(*args: Any, **options: Any) -> bytearray:
        found = fetch(*args, **options)
        held.append(inputs.held_bytes)
        return found

    inputs = ReferencedInputs(HOSTS, MOST_BYTES, watched, kept_s=0.0)
    with answering(ok()) as url:
        inputs.begin(request_of(**{"$ref": url}), 2.0)
        wait_until(lambda: held == [len(IMAGE)])
        wait_until(lambda: inputs.held_bytes == 0)


@pytest.mark.parametrize("answer", [b"", ok(IMAGE, length=len(IMAGE) + 1), ok(b"x" * MOST_BYTES, "X: y")])
def test_a_fetch_that_fails_holds_nothing(answer: bytes) -> None:
    inputs = ReferencedInputs(HOSTS, MOST_BYTES)
    with answering(answer) as url:
        assert isinstance(fetched(inputs, request_of(**{"$ref": url, "sha256": "0" * 64})), Failed | Rejected)
    assert inputs.held_bytes == 0


def test_only_an_object_with_that_name_first_is_a_reference() -> None:
    assert refers(b'{"$ref":"https://x"}')
    assert refers(b' { "$ref" : 5}')
    assert not refers(b'{"$base64":"$ref"}')
    assert not refers(b'"$ref"')
