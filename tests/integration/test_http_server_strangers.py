"""Clients that begin and do not go on: the places and memory that they may take of a worker, and who gives way."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.http_server_harness import PATIENCE_S, Answer, Client, Gone, Server, get, post
from tests.waiting import wait_until

_BUDGET = 5_000_000
_ROOT = Path(__file__).parents[2]


def _memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def _beginning(size: int) -> bytes:
    """A large body's head and its first `size` bytes."""
    return b"POST /size HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n" + b"x" * size


def _first_answered(clients: list[Client]) -> Client:
    """One of them that the server has answered; which began first is the kernel's affair when they come together."""
    ready, _, _ = select.select([each.socket for each in clients], [], [], PATIENCE_S)
    assert ready, "none is answered"
    return next(each for each in clients if each.socket in ready)


def _told(clients: list[Client]) -> Answer | None:
    """The first answer that comes soon; those that are closed without one have none."""
    waiting = {each.socket: each for each in clients}
    while waiting:
        readable, _, _ = select.select(list(waiting), [], [], 2.0)
        if not readable:
            return None
        for each in readable:
            with contextlib.suppress(Gone, OSError):
                return waiting[each].answer()
            del waiting[each]
    return None


class TestPlaces:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        with Server(tmp_path, worker_connections=8) as running:
            yield running

    def test_a_new_client_gets_the_place_of_one_that_says_nothing(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(server.client()) for _ in range(30)]
            with server.client() as client:
                assert client.get("/").status == 200
            assert silent[0].is_closed()

    def test_one_that_was_served_is_kept_for_longer_than_one_that_never_spoke(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            known = stack.enter_context(server.client())
            assert known.get("/").status == 200
            for _ in range(30):
                stack.enter_context(server.client())
            assert known.get("/").status == 200

    def test_nor_do_bodies_that_stop_in_the_middle_lock_anybody_out(self, server: Server) -> None:
        def besieged() -> Answer | None:
            with contextlib.ExitStack() as stack:
                stalled = [stack.enter_context(server.client()) for _ in range(20)]
                for each in stalled:
                    # One that is taken for silent, because its place is needed before it was read, is told nothing.
                    with contextlib.suppress(OSError):
                        each.send(_beginning(10_000))
                with server.client() as client:
                    assert client.get("/").status == 200
                return _told(stalled)

        # On a busy machine all who give way may be taken for silent.
        answer = next(filter(None, (besieged() for _ in range(5))), None)
        assert answer is not None
        assert (answer.status, answer.json["error"]) == (503, "SERVICE_OVERLOADED")
        assert answer.headers["retry-after"] == "1"

    def test_who_waits_for_an_answer_keeps_its_place(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            busy = stack.enter_context(server.client())
            busy.send(get("/sleep?2"))
            wait_until(lambda: server.state()["calls"] == 1)
            for _ in range(30):
                stack.enter_context(server.client())
            assert busy.answer().status == 200


def test_with_few_descriptors_some_are_left(tmp_path: Path) -> None:
    """1,100 silent clients and a limit of 600 for soft and hard: others are served, and the server can open files."""
    with _descriptors(600), Server(tmp_path) as server:
        besieging = subprocess.Popen(
            [sys.executable, "-m", "tests.strangers", str(server.port), "500", "6"],
            cwd=_ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        pid = server.state()["pid"]
        wait_until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) > 300, what="they are there")
        for _ in range(20):
            with server.client() as client:
                assert client.get("/").status == 200
            assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 400
        said, _ = besieging.communicate(timeout=60)
    assert json.loads(said)["replaced"] > 0
    assert "Too many open files" not in server.log


@contextlib.contextmanager
def _descriptors(limit: int) -> Iterator[None]:
    """For children: ours stay as they are, as the hard limit cannot be raised again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestMemory:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        with Server(tmp_path, limits={"arriving_bytes": _BUDGET}) as running:
            yield running

    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
    def test_bodies_that_stop_in_the_middle_stay_within_the_budget(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            known = stack.enter_context(server.client())
            known.get("/")
            pid = server.state()["pid"]
            before = _memory_bytes(pid)
            stalled = [stack.enter_context(server.client()) for _ in range(60)]
            for each in stalled:
                each.send(_beginning(900_000))
            assert known.get("/").status == 200
            # 60 of them are 54 MB, where the budget holds five. Connections cost something too, and the allocator does
            # not return at once what those took who gave way.
            assert _memory_bytes(pid) - before < 6 * _BUDGET
            assert _first_answered(stalled).answer().status == 503

    def test_the_oldest_gives_way_and_the_newest_is_served(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            # The sixth is one too many.
            stalled = [stack.enter_context(server.client()) for _ in range(6)]
            for each in stalled:
                each.send(_beginning(900_000))
                # It has begun to receive that one, when it answers another.
                server.state()
            assert _first_answered(stalled) is stalled[0]
            answer = stalled[0].answer()
            assert (answer.status, answer.json["error"], answer.json["retry_after_ms"]) == (
                503, "SERVICE_OVERLOADED", 1000)  # fmt: skip
            with server.client() as client:
                assert client.ask(post("/size", bytes(800_000))).json == 800_000

    def test_heads_without_an_end_count_too(self, server: Server) -> None:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.client()) for _ in range(80)]
            for each in clients:
                each.send(b"GET / HTTP/1.1\r\nHost: test\r\nX-A: " + b"a" * 60_000)
            # Well before the ten seconds that a head may take.
            assert _first_answered(clients).answer().status == 503

    def test_small_chunks_cost_their_framing(self, server: Server) -> None:
        with server.client() as client:
            client.send(b"POST /size HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                client.send(b"1\r\na\r\n" * 100_000)
            assert client.answer().status == 400

    @pytest.mark.parametrize("chunk", [90, 4096])
    def test_ordinary_chunks_do_not(self, server: Server, chunk: int) -> None:
        count = 900_000 // chunk
        with server.client() as client:
            client.send(b"POST /size HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send((b"%x\r\n%b\r\n" % (chunk, b"x" * chunk)) * count + b"0\r\n\r\n")
            assert client.answer().json == chunk * count


class TestRefusedUploads:
    def test_a_slow_upload_is_read_to_its_end(self, tmp_path: Path) -> None:
        """A client that reads no answer before it has sent everything takes longer than one pause for that."""
        with Server(tmp_path, limits={"linger_s": 2.0}) as server, server.client() as client:
            client.send(b"POST /size HTTP/1.1\r\nHost: test\r\nContent-Length: 3000000\r\n\r\n")
            for _ in range(24):
                client.send(b"x" * 125_000)
                time.sleep(0.1)
            assert client.answer().status == 413

    def test_but_not_for_ever(self, tmp_path: Path) -> None:
        limits = {"linger_s": 0.5, "linger_most_s": 1.0}
        with Server(tmp_path, limits=limits) as server, server.client() as client:
            client.send(b"POST /size HTTP/1.1\r\nHost: test\r\nContent-Length: 3000000\r\n\r\n")
            with pytest.raises(OSError):  # noqa: PT011 - a reset or a broken pipe
                _send_for_ever(client)


def _send_for_ever(client: Client) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        client.send(b"x")
        time.sleep(0.05)


class TestBeforeTheBody:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        with Server(tmp_path) as running:
            yield running

    def test_an_application_may_answer_without_it(self, server: Server) -> None:
        with server.client() as client:
            client.send(_beginning(10_000).replace(b"Host: test", b"Host: test\r\nX-Stranger: 1"))
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            assert client.is_closed()
        assert server.state()["calls"] == 0

    def test_and_is_asked_before_a_client_is_told_to_continue(self, server: Server) -> None:
        head = b"POST /size HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
        with server.client() as stranger:
            assert stranger.ask(head + b"X-Stranger: 1\r\n\r\n").status == 401
        with server.client() as client:
            assert client.ask(head + b"\r\n").status == 100
            assert client.ask(b"hello").json == 5

    def test_what_came_with_the_head_is_for_the_application(self, server: Server) -> None:
        with server.client() as client:
            assert client.ask(post("/size", b"hello", "X-Stranger: 1")).json == 5


def test_a_client_that_closes_its_side_counts_as_gone(tmp_path: Path) -> None:
    """It cannot be told from one that hung up, so its request may be taken back; what is answered still reaches it."""
    with Server(tmp_path) as server, server.client() as client:
        client.send(get("/until-gone?60"))
        wait_until(lambda: server.state()["calls"] == 1)
        client.socket.shutdown(1)
        assert client.answer().status == 200
        assert server.state()["noticed"] == 1
