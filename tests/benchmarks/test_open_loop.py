"""The open loop's generator, against a small server."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tests.benchmarks import open_loop as module
from tests.benchmarks.open_loop import TooFewAnswersError, arrivals, open_loop
from tests.benchmarks.shapes import Texts, input_output
from tests.waiting import PATIENCE_S

SHAPE = input_output("/infer")

# From the number of a request and its input to status and output.
Answer = Callable[[int, str], tuple[int, str]]


@contextmanager
def server(answer: Answer, *, close: bool = False) -> Iterator[str]:
    """Echoes as `answer` says; `close` ends each connection after its answer."""
    seen: list[str] = []
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one segment.
        wbufsize = -1

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            seen.append(text)
            # Each connection has its thread, and no two of them the same number.
            status, output = answer(next(numbers), text)
            body = json.dumps({"output": output}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if close:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        # From a shorter queue the kernel drops some callers, who try again after seconds.
        request_queue_size = 256

    listening = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
        assert len(seen) == len(set(seen))


def echo(_number: int, text: str) -> tuple[int, str]:
    return 200, text


def due(rate: float, since_s: float, until_s: float) -> int:
    return sum(at >= since_s for at in arrivals(rate, until_s, 1))


@pytest.mark.parametrize("close", [False, True])
def test_every_arrival_is_answered_also_where_each_connection_ends_with_its_answer(close: bool) -> None:
    with server(echo, close=close) as url:
        found = open_loop(url, SHAPE, rate=200, duration_s=0.3)
    assert (found.answered, found.failed) == (due(200, 0, 0.3), 0)
    assert 0 < found.p50_ms <= found.p95_ms <= found.p99_ms


def test_requests_of_the_warm_up_are_sent_and_not_counted() -> None:
    numbers: list[int] = []

    def count(number: int, text: str) -> tuple[int, str]:
        numbers.append(number)
        return 200, text

    with server(count) as url:
        found = open_loop(url, SHAPE, rate=200, duration_s=0.2, warmup_s=0.2)
    assert found.answered == due(200, 0.2, 0.4)
    assert len(numbers) == due(200, 0, 0.4)


def test_an_error_and_an_answer_to_somebody_else_are_failures() -> None:
    def partly(number: int, text: str) -> tuple[int, str]:
        return (503, text) if number == 3 else (200, "another's" if number == 5 else text)

    with server(partly) as url:
        found = open_loop(url, SHAPE, rate=200, duration_s=0.2)
    assert (found.answered, found.failed) == (due(200, 0, 0.2) - 2, 2)


def test_a_stall_is_seen_by_every_request_that_was_due_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # One connection: the others are not even sent during the stall, and a latency from then would not show it.
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 1)

    def stall(number: int, text: str) -> tuple[int, str]:
        if number == 1:
            time.sleep(0.4)
        return 200, text

    with server(stall) as url:
        found = open_loop(url, SHAPE, rate=200, duration_s=0.4)
    assert found.answered == due(200, 0, 0.4)
    assert found.p50_ms > 100


def test_what_is_never_answered_is_one_failure_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(module, "_DRAIN_S", 0.1)
    held, over = threading.Event(), threading.Event()
    stands_at: list[float] = []

    def silent(number: int, text: str) -> tuple[int, str]:
        if number == 10 + module.MOST_CONNECTIONS:
            held.set()
        if number > 10:
            over.wait(30)
        return 200, text

    def all_come(*given: float) -> Iterator[float]:
        yield from arrivals(*given)
        stands_at.append(time.perf_counter())

    def clock() -> float:
        now = time.perf_counter()
        # After the last arrival it stands still until ten have their answers, however long that takes.
        return stands_at[0] if stands_at and not held.is_set() and now < stands_at[0] + PATIENCE_S else now

    monkeypatch.setattr(module, "arrivals", all_come)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock, sleep=time.sleep))
    with server(silent) as url:
        found = open_loop(url, SHAPE, rate=200, duration_s=0.3)
        over.set()
    # Four have a connection, and the others still wait for one.
    assert (found.answered, found.failed) == (10, due(200, 0, 0.3) - 10)


def test_a_system_that_is_gone_is_said_to_have_answered_nothing() -> None:
    with server(echo) as url:
        pass
    with pytest.raises(TooFewAnswersError, match="0 answers are too few"):
        open_loop(url, SHAPE, rate=100, duration_s=0.2)


def test_all_who_wait_when_the_system_goes_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails as soon as it is sent, however many they are."""
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 1)
    system = socket.create_server(("127.0.0.1", 0))

    def all_at_once(*_: object) -> Iterator[float]:
        yield from [0.0] * 1000
        system.close()

    monkeypatch.setattr(module, "arrivals", all_at_once)
    url = f"http://127.0.0.1:{system.getsockname()[1]}"
    with pytest.raises(TooFewAnswersError, match=r"1000 failed"):
        open_loop(url, SHAPE, rate=100, duration_s=0.2)


@pytest.mark.parametrize("size", [60, 2048])
def test_inputs_are_distinct_and_of_the_size_that_was_asked_for(size: int) -> None:
    texts = [Texts("1234abcd", size).of(number) for number in (0, 1, 123_456_789)]
    assert {len(text) for text in texts} == {size}
    assert len(set(texts)) == 3
