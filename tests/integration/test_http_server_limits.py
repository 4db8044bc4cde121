"""The limits of one client in time and bytes, short enough here to wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.http_server_harness import PATIENCE_S, Client, Server, get, post
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"header_time_s": 0.5, "body_time_s": 0.5, "send_time_s": 0.5, "linger_s": 0.5}
    with Server(tmp_path_factory.mktemp("http_server_limits"), limits=limits, keepalive=1) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def _drip(client: Client, data: bytes) -> None:
    """Send a byte now and then, until the server has had enough."""
    client.socket.settimeout(0.1)
    for index in range(len(data)):
        client.send(data[index : index + 1])
        try:
            client._more()
        except TimeoutError:
            continue
        break
    else:
        pytest.fail("the server read all of it")
    client.socket.settimeout(PATIENCE_S)


class TestTimes:
    def test_a_slow_head(self, client: Client) -> None:
        _drip(client, get("/", "X-Request-Id: slow", "X-Long: " + "a" * 500))
        answer = client.answer()
        assert (answer.status, answer.json["error"]) == (408, "INVALID_INPUT")
        assert answer.headers["x-request-id"] == answer.json["request_id"]
        assert client.is_closed()

    def test_a_slow_head_behind_a_good_request(self, client: Client) -> None:
        client.get("/")
        client.send(get("/")[:-2])
        assert client.answer().status == 408

    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_slow_body(self, client: Client, chunked: bool) -> None:
        if chunked:
            head = b"POST / HTTP/1.1\r\nHost: test\r\nX-Request-Id: mine\r\nTransfer-Encoding: chunked\r\n\r\n"
            body = b"1\r\na\r\n" * 100
        else:
            head, body = post("/", b"a" * 500, "X-Request-Id: mine").split(b"\r\n\r\n")
            head += b"\r\n\r\n"
        client.send(head)
        _drip(client, body)
        answer = client.answer()
        assert (answer.status, answer.json["request_id"]) == (408, "mine")
        assert client.is_closed()

    def test_silence_after_a_request_ends_in_silence(self, client: Client) -> None:
        # Before the answer, since the silence begins with that, and we may hear of it late.
        began = time.monotonic()
        client.get("/")
        assert client.is_closed()
        assert time.monotonic() - began >= 1.0

    def test_silence_from_the_beginning_too(self, client: Client) -> None:
        assert client.is_closed()

    def test_a_client_that_takes_nothing(self, server: Server, client: Client) -> None:
        closed = server.state()["closed"]
        client.send(get("/endless"))
        wait_until(lambda: server.state()["closed"] == closed + 1)

    def test_the_application_may_take_longer_than_any_of_them(self, client: Client) -> None:
        assert client.get("/sleep?2").status == 200

    def test_keepalive_0_closes_each_time(self, tmp_path: Path) -> None:
        with Server(tmp_path, keepalive=0) as closing, closing.client() as client:
            assert client.get("/").headers["connection"] == "close"
            assert client.is_closed()


def _memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
class TestMemory:
    def test_clients_that_send_too_much_cost_nothing_that_stays(self, server: Server) -> None:
        floods = [
            b"GET / HTTP/1.1\r\nHost: test\r\n" + b"A: b\r\n" * 100_000,
            post("/", bytes(10_000_000)),
            b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20,
            b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(1000),
        ]

        def flood() -> None:
            for data in floods:
                with server.client() as client:
                    client.send(data)
                    client.socket.shutdown(1)
                    assert 400 <= client.answer().status < 500

        flood()
        before = _memory_kib(server.state()["pid"])
        for _ in range(10):
            flood()
        assert _memory_kib(server.state()["pid"]) - before < 5_000

    def test_nor_do_connections(self, tmp_path: Path) -> None:
        with Server(tmp_path) as server:
            self._connections_leave_nothing(server)

    @staticmethod
    def _connections_leave_nothing(server: Server) -> None:
        pid = server.state()["pid"]

        def files() -> int:
            return len(list(Path(f"/proc/{pid}/fd").iterdir()))

        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.client()) for _ in range(100)]
            for client in clients:
                client.get("/")
            assert files() >= 100
        wait_until(lambda: files() < 30)


def test_a_bad_limit_names_itself(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ServerLimits\.body_bytes is 0"):
        Server(tmp_path, limits={"body_bytes": 0})
