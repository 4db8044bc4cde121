"""Workers that come and go: shutdown, reload, recycling, several on one listener, preloading."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.integration.http_server_harness import Client, Gone, Server, get, post
from tests.processes import alive
from tests.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


class Load:
    """Clients that keep their connections and send one request after the other, as fast as they get answers.

    `lost` counts requests that were sent whole and got no answer.
    """

    def __init__(self, server: Server, clients: int, *, reconnect: bool) -> None:
        self.answers: Counter[tuple[int, str | None]] = Counter()
        self.pids: set[int] = set()
        self.lost: list[str] = []
        self._server = server
        self._reconnect = reconnect
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.answers.total() > 10 * len(self._threads))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        requests = [get("/"), post("/", b"body" * 5000), get("/sleep?0.02"), get("/no-length")]
        client = self._server.client()
        count = index
        while not self._stopped.is_set():
            count += 1
            request = requests[count % len(requests)]
            try:
                client.send(request)
                answer = client.answer()
            except (Gone, OSError) as error:
                self.lost.append(f"{request[:20]!r}: {error!r}")
                break
            connection = answer.headers.get("connection")
            self.answers[answer.status, connection] += 1
            if request.startswith(b"GET /sleep"):
                self.pids.add(answer.json["pid"])
            if connection == "close":
                client.close()
                if not self._reconnect:
                    break
                client = self._server.client()
        client.close()


def _stop_meanwhile(server: Server, gate: Path) -> None:
    """Stop the server while a request waits for the gate, and open that once the worker knows."""
    wait_until(gate.with_suffix(".here").exists, what="the request is served")
    with server.client() as other:
        other.get("/")
        server.signal(signal.SIGTERM)
        wait_until(other.meets_a_stop, what="the server stops")
    gate.touch()


# However late a client is with the request that follows an answer: the default is a second.
LENIENT = {"drain_idle_s": 60.0}


class TestShutdown:
    def test_reload_under_load_loses_nothing(self, tmp_path: Path) -> None:
        with Server(tmp_path, limits=LENIENT) as server, Load(server, 8, reconnect=True) as load:
            for _ in range(2):
                known = len(load.pids)
                server.signal(signal.SIGHUP)
                wait_until(lambda known=known: len(load.pids) > known)
        assert load.lost == []
        assert set(load.answers) == {(200, None), (200, "close")}

    def test_stop_under_load_loses_nothing(self, tmp_path: Path) -> None:
        with Server(tmp_path, limits=LENIENT) as server:
            with Load(server, 8, reconnect=False) as load:
                server.signal(signal.SIGTERM)
                load.join()
            assert load.lost == []
            assert load.answers[200, "close"] == 8
            assert server.process.wait(20) == 0

    def test_a_request_in_progress_is_finished_and_can_know(self, server: Server, tmp_path: Path) -> None:
        with server.client() as client:
            client.send(get(f"/until?{tmp_path / 'gate'}"))
            _stop_meanwhile(server, tmp_path / "gate")
            answer = client.answer()
            assert answer.json["shutting_down"] is True
            assert answer.headers["connection"] == "close"
            assert client.is_closed()

    def test_a_request_that_has_begun_to_arrive_is_finished(self, server: Server) -> None:
        with server.client() as client, server.client() as other:
            request = post("/", b"x" * 100)
            client.send(request[:30])
            other.get("/")
            server.signal(signal.SIGTERM)
            wait_until(lambda: other.get("/").headers.get("connection") == "close")
            client.send(request[30:80])
            # Longer than an idle connection is kept.
            time.sleep(1.5)
            client.send(request[80:])
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert server.process.wait(20) == 0

    def test_pipelined_requests_are_all_answered(self, server: Server, tmp_path: Path) -> None:
        with server.client() as client:
            client.send(get(f"/until?{tmp_path / 'gate'}") + get("/second") + get("/third"))
            _stop_meanwhile(server, tmp_path / "gate")
            connections = [client.answer().headers.get("connection") for _ in range(3)]
            assert connections == [None, None, "close"]
            assert client.is_closed()

    def test_idle_connections_do_not_hold_it_up(self, server: Server) -> None:
        with server.client() as used, server.client() as unused:
            used.get("/")
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert time.monotonic() - began < 10
            assert used.is_closed()
            assert unused.is_closed()

    def test_connections_still_in_the_backlog_are_answered(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Server(tmp_path, worker_connections=1))
            served = stack.enter_context(server.client())
            served.get("/")
            # Not before: one that has asked for nothing yet makes room for the next.
            waiting = stack.enter_context(server.client())
            waiting.send(get("/waited"))
            # The worker is full, so only its shutdown can accept the second.
            server.signal(signal.SIGTERM)
            assert waiting.answer().json["PATH_INFO"] == "/waited"

    def test_silent_ones_there_do_not_hold_it_up(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            limits = {"header_time_s": 60.0}
            server = stack.enter_context(Server(tmp_path, worker_connections=1, graceful_timeout=60, limits=limits))
            served = stack.enter_context(server.client())
            served.get("/")
            # Not before: one that has asked for nothing yet makes room for the next.
            silent = stack.enter_context(server.client())
            server.signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert silent.is_closed()

    def test_a_quick_stop_waits_for_nobody(self, server: Server) -> None:
        with server.client() as client:
            client.send(get("/sleep?60"))
            wait_until(lambda: server.state()["calls"] == 1)
            server.signal(signal.SIGINT)
            assert server.process.wait(10) == 0
            assert client.is_closed()

    def test_graceful_timeout_cuts_the_rest(self, tmp_path: Path) -> None:
        with Server(tmp_path, graceful_timeout=1) as server, server.client() as client:
            client.send(get("/sleep?60"))
            wait_until(lambda: server.state()["calls"] == 1)
            server.signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert client.is_closed()


class TestWorkers:
    def test_connections_are_shared_out(self, tmp_path: Path) -> None:
        with Server(tmp_path, workers=2) as server:

            def smaller_share() -> int:
                pids: Counter[int] = Counter()
                with contextlib.ExitStack() as stack:
                    clients = [stack.enter_context(server.client()) for _ in range(64)]
                    for client in clients:
                        client.send(get("/"))
                    for client in clients:
                        environ = client.answer().json
                        assert environ["wsgi.multiprocess"] is True
                        pids[environ["pid"]] += 1
                return min(pids.values()) if len(pids) == 2 else 0

            # The workers need a second to hear of each other; on a busy machine one may miss its turns.
            wait_until(lambda: smaller_share() >= 16)

    def test_connections_beyond_the_cap_wait_while_all_others_are_being_served(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Server(tmp_path, worker_connections=2))
            busy, events = (stack.enter_context(server.client()) for _ in range(2))
            let_go = tmp_path / "let-go"
            busy.send(get(f"/until?{let_go}"))
            # One that has asked for nothing yet would make room.
            wait_until(let_go.with_suffix(".here").exists)
            # Ends with the next request, which is the late one's.
            events.send(get("/events"))
            events.until(b"data: 1\n\n")
            late = stack.enter_context(server.client())
            late.send(get("/"))
            late.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                late.answer()
            let_go.touch()
            late.socket.settimeout(20)
            assert busy.answer().status == 200
            assert late.answer().status == 200

    def test_max_requests_recycles_without_losing_any(self, tmp_path: Path) -> None:
        with Server(tmp_path, max_requests=50, limits=LENIENT) as server:
            with Load(server, 4, reconnect=True) as load:
                wait_until(lambda: len(load.pids) >= 3)
            assert load.lost == []
            assert load.answers[200, "close"] > 0

    @pytest.mark.parametrize("preload_app", [False, True])
    def test_a_worker_that_dies_is_replaced(self, tmp_path: Path, preload_app: bool) -> None:
        with Server(tmp_path, preload_app=preload_app) as server:
            pid = server.state()["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.log.count("Booting worker") == 2)
            assert server.state()["pid"] != pid

    def test_a_worker_that_blocks_is_replaced(self, tmp_path: Path) -> None:
        # A machine that stands still may hold up a heartbeat, which comes each second, for three more.
        with Server(tmp_path, timeout=5) as server:
            pid = server.state()["pid"]
            # Idle for longer than the timeout: the heartbeat goes on.
            time.sleep(5.5)
            assert server.state()["pid"] == pid
            with server.client() as client:
                client.send(get("/block"))
                assert client.is_closed()
            assert server.state()["pid"] != pid

    def test_a_worker_whose_master_died_goes(self, server: Server) -> None:
        pid = server.state()["pid"]
        server.process.kill()
        server.process.wait()
        # Its zombie may stay, where the first process of a container waits for nobody.
        wait_until(lambda: not alive(pid))

    def test_preload(self, tmp_path: Path) -> None:
        with Server(tmp_path, preload_app=True, workers=2, limits=LENIENT) as server:
            with server.client() as client:
                assert client.get("/cooperates").json is True
            with Load(server, 4, reconnect=True) as load:
                known = set(load.pids)
                server.signal(signal.SIGHUP)
                wait_until(lambda: bool(load.pids - known))
            assert load.lost == []
            assert "MonkeyPatchWarning" not in server.log


def test_access_log(tmp_path: Path) -> None:
    access = tmp_path / "access.log"
    line = "%(r)s %(s)s %(b)s %({x-one}i)s %({content-type}o)s"
    with Server(tmp_path, accesslog=str(access), access_log_format=line) as server, server.client() as client:
        client.get("/list?a=b", "X-One: 1")
        client.get("/raises", "X-One: 2")
    lines = access.read_text().splitlines()
    assert "GET /list?a=b HTTP/1.1 200 6 1 -" in lines
    assert any(entry.startswith("GET /raises HTTP/1.1 500 ") for entry in lines)


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with Server(tmp_path, unix_path=path) as server, Client(server.port, path) as client:
        environ = client.get("/").json
        assert environ["REMOTE_ADDR"] == ""
        assert environ["SERVER_NAME"]
