"""Requests that the web server serves in its event loop: what clients see is as if a greenlet had served them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.http_server_harness import Client, Server, get, post
from tests.waiting import wait_until

PATH = "/short-path"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("short_path")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with warm(server) as connected:
        yield connected


def warm(server: Server) -> Client:
    """A connection whose head is known: its next requests may be served in the event loop."""
    client = server.client()
    for _ in range(2):
        assert client.ask(ask("greenlet")).json["PATH_INFO"] == PATH
    return client


def ask(body: str, *headers: str) -> bytes:
    return post(PATH, body.encode(), *headers)


def counted(server: Server, name: str) -> int:
    with server.client() as other:
        number: int = other.get("/state").json[name]
    return number


class TestAnswers:
    def test_a_request_like_the_one_before_is_served_in_the_event_loop(self, client: Client, server: Server) -> None:
        before = counted(server, "short"), counted(server, "calls")
        answers = [client.ask(ask(f"answer {size}")) for size in (1, 20, 300)]
        assert [len(each.body) for each in answers] == [1, 20, 300]
        assert answers[0].headers["x-content-type-options"] == "nosniff"
        assert (counted(server, "short"), counted(server, "calls")) == (before[0] + 3, before[1])

    def test_what_it_leaves_is_served_by_the_greenlet_on_the_same_connection(self, client: Client) -> None:
        assert client.ask(ask("answer 3")).body == b"xxx"
        assert client.ask(ask("something else")).json["body"] == "something else"
        assert client.get("/other").json["PATH_INFO"] == "/other"
        assert client.ask(ask("answer 4", "X-New: head")).json["HTTP_X_NEW"] == "head"

    def test_a_request_that_comes_in_parts_is_served_by_the_greenlet(self, client: Client, server: Server) -> None:
        before = counted(server, "short")
        request = ask("answer 3")
        for part in (request[:20], request[20:-3], request[-3:]):
            client.send(part)
            # What it has of the request it has received, when it answers another: else all may come together.
            assert counted(server, "short") == before
        assert client.answer().json["body"] == "answer 3"
        assert counted(server, "short") == before

    def test_one_that_is_taken_and_given_back_is_served_from_its_beginning(self, client: Client) -> None:
        assert client.ask(ask("resume")).json["body"] == "resume"
        assert client.ask(ask("answer 3")).body == b"xxx"

    def test_a_path_that_fails_leaves_the_request_to_the_greenlet(self, client: Client) -> None:
        assert client.ask(ask("break")).json["body"] == "break"
        assert client.ask(ask("answer 3")).body == b"xxx"

    def test_requests_that_follow_one_that_is_served_wait_for_their_turn(self, client: Client, tmp_path: Path) -> None:
        client.send(ask(f"until {tmp_path / 'gate'}"))
        wait_until((tmp_path / "gate.here").exists, what="the first request is served")
        client.send(ask("answer 2") + get("/after"))
        (tmp_path / "gate").touch()
        assert client.answer().body == b"xxxxx"
        assert client.answer().json["body"] == "answer 2"
        assert client.answer().json["PATH_INFO"] == "/after"

    def test_an_answer_that_the_client_reads_late_is_whole(self, server: Server) -> None:
        with warm(server) as client:
            # More than the buffers of both kernels hold.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            size = 16_000_000
            body = client.ask(ask(f"answer {size}")).body
            assert (len(body), set(body)) == (size, set(b"x"))
            assert client.ask(ask("answer 3")).body == b"xxx"


class TestEnds:
    def test_a_client_that_leaves_while_it_is_served_hurts_nobody(self, server: Server, tmp_path: Path) -> None:
        client = warm(server)
        client.send(ask(f"until {tmp_path / 'gate'}"))
        wait_until((tmp_path / "gate.here").exists, what="the request is served")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        (tmp_path / "gate").touch()
        with warm(server) as another:
            assert another.ask(ask("answer 3")).body == b"xxx"

    def test_a_connection_without_a_next_request_ends(self, tmp_path: Path) -> None:
        with Server(tmp_path, keepalive=1) as server, warm(server) as client:
            assert client.ask(ask("answer 3")).body == b"xxx"
            assert client.is_closed()

    def test_one_that_is_served_is_not_idle(self, tmp_path: Path) -> None:
        with Server(tmp_path, keepalive=1) as server, warm(server) as client:
            gate = tmp_path / "gate"
            client.send(ask(f"until {gate}"))
            with server.client() as idle:
                idle.get("/a")
                assert idle.is_closed()
            gate.touch()
            assert client.answer().body == b"xxxxx"

    def test_a_server_that_stops_closes_the_connection_with_the_answer(self, tmp_path: Path) -> None:
        with Server(tmp_path) as server, warm(server) as client, server.client() as other:
            gate = tmp_path / "gate"
            client.send(ask(f"until {gate}"))
            wait_until(gate.with_suffix(".here").exists, what="the request is served")
            other.get("/")
            server.signal(signal.SIGTERM)
            wait_until(lambda: other.get("/").headers.get("connection") == "close", what="the server stops")
            gate.touch()
            answer = client.answer()
            assert (answer.headers["connection"], answer.json["body"]) == ("close", f"until {gate}")
            assert client.is_closed()

    def test_one_that_is_served_for_too_long_is_abandoned(self, tmp_path: Path) -> None:
        with Server(tmp_path, graceful_timeout=1) as server, warm(server) as client:
            gate = tmp_path / "gate"
            client.send(ask(f"until {gate}"))
            wait_until(gate.with_suffix(".here").exists, what="the request is served")
            server.signal(signal.SIGTERM)
            assert client.is_closed()
            assert server.process.wait(20) == 0
