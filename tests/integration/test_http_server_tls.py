"""The server under TLS: handshakes, what a connection is afterwards, and certificates that are replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.tls import Authority
from tests.integration.http_server_harness import Client, Server, get, post
from tests.integration.test_http_server_lifecycle import LENIENT, Load
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def trust(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca))


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, str]:
    certificate, key = authority.certificate("127.0.0.1")
    return {"tls_cert": str(certificate), "tls_key": str(key)}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, files: dict[str, str], trust: ssl.SSLContext
) -> Iterator[Server]:
    tls = {**files, "tls_client_ca": str(authority.ca)}
    limits = {"handshake_time_s": 1.0}
    with Server(tmp_path_factory.mktemp("server"), tls=tls, trust=trust, limits=limits, worker_connections=20) as each:
        yield each


def tls_of(client: Client) -> ssl.SSLSocket:
    assert isinstance(client.socket, ssl.SSLSocket)
    return client.socket


class TestHandshake:
    def test_requests_have_its_scheme(self, server: Server) -> None:
        with server.client() as client:
            assert [client.get("/").json["wsgi.url_scheme"] for _ in range(3)] == ["https"] * 3

    def test_the_only_protocol_is_http_1_1(self, server: Server, authority: Authority) -> None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.set_alpn_protocols(["h2", "http/1.1"])
        with Client(server.port, tls=context) as client:
            assert tls_of(client).selected_alpn_protocol() == "http/1.1"

    def test_versions_before_1_2_are_refused(self, server: Server, authority: Authority) -> None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Client(server.port, tls=context)

    def test_plain_http_is_told_so(self, server: Server) -> None:
        with Client(server.port) as client:
            answer = client.get("/")
            assert (answer.status, "https://" in answer.json["message"]) == (400, True)
            assert client.is_closed()

    def test_a_client_that_says_nothing_or_rubbish_is_disconnected(self, server: Server) -> None:
        for said in (b"", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100):
            with Client(server.port) as client:
                client.send(said)
                # Perhaps an alert; then the end.
                client.rest()

    def test_silent_ones_keep_no_client_out(self, server: Server) -> None:
        """They are half-done handshakes, as many as the worker has places for connections."""
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(Client(server.port)).send(b"\x16\x03\x01\x02\x00\x01")
            with server.client() as client:
                assert client.get("/").status == 200

    def test_a_storm_of_them_leaves_requests_their_part_of_the_loop(self, tmp_path: Path) -> None:
        """The key is a large one: without turns, few requests would be answered until all handshakes are done."""
        authority = Authority(tmp_path)
        certificate, key = authority.certificate("127.0.0.1", rsa_bits=4096)
        context = ssl.create_default_context(cafile=str(authority.ca))
        tls = {"tls_cert": str(certificate), "tls_key": str(key)}
        with Server(tmp_path, tls=tls, trust=context) as server, server.client() as client:
            client.get("/")
            pid = server.state()["pid"]
            os.kill(pid, signal.SIGSTOP)
            # All of them are there at once when it goes on.
            waiting = [_begun(context, server.port) for _ in range(100)]
            os.kill(pid, signal.SIGCONT)
            answered = 0
            while waiting:
                client.get("/")
                answered += 1
                waiting = [each for each in waiting if not _ended(each)]
            assert answered > 10


class TestConnection:
    def test_requests_in_one_record_are_all_answered(self, server: Server) -> None:
        with server.client() as client:
            client.send(get("/one") + post("/", b"x" * 10) + get("/three"))
            assert [client.answer().json["PATH_INFO"] for _ in range(3)] == ["/one", "/", "/three"]

    def test_a_body_that_ends_inside_a_record_leaves_the_next_request(self, server: Server) -> None:
        request = post("/size", b"x" * 40_000)
        with server.client() as client:
            # Well before the server gives up waiting for more, when it would look once again.
            client.socket.settimeout(20)
            # The last record has the end of the body and the next request.
            client.send(request[:20_000])
            client.send(request[20_000:] + get("/next"))
            assert client.answer().json == 40_000
            assert client.answer().json["PATH_INFO"] == "/next"

    def test_large_bodies_and_answers(self, server: Server) -> None:
        with server.client() as client:
            assert client.ask(post("/size", b"x" * 900_000)).json == 900_000
            client.send(get("/endless"))
            client.until(b"\r\n\r\n")
            # More than the kernel takes at once: OpenSSL must be given the rest as it was.
            for _, part in zip(range(100), client.chunks(), strict=False):
                assert part == b"x" * 65536

    def test_parts_of_an_answer_are_sent_at_once(self, server: Server) -> None:
        with server.client() as client, server.client() as other:
            client.send(get("/events"))
            client.until(b"data: 1\n\n")
            other.get("/")
            client.until(b"data: 2\n\n")

    @pytest.mark.parametrize("politely", [True, False])
    def test_a_client_that_hangs_up_is_noticed(self, server: Server, politely: bool) -> None:
        noticed = server.state()["noticed"]
        with server.client() as client:
            client.send(get("/until-gone?60"))
            if politely:
                with contextlib.suppress(OSError, ValueError):
                    tls_of(client).unwrap()
        wait_until(lambda: server.state()["noticed"] == noticed + 1)

    def test_one_that_sends_its_next_request_has_not_hung_up(self, server: Server) -> None:
        noticed = server.state()["noticed"]
        with server.client() as client:
            client.send(get("/until-gone"))
            client.send(get("/next"))
            assert client.answer().json == "waited"
            assert client.answer().json["PATH_INFO"] == "/next"
        assert server.state()["noticed"] == noticed

    def test_the_end_of_an_answer_cannot_be_faked_by_cutting_the_connection(self, server: Server) -> None:
        with server.client() as client:
            strict = tls_of(client)
            strict.suppress_ragged_eofs = False
            client.send(b"GET /no-length HTTP/1.0\r\n\r\n")
            assert b"onetwo" in client.rest()


class TestCertificates:
    def test_the_names_of_a_clients_certificate_reach_the_application(
        self, server: Server, authority: Authority
    ) -> None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(
            *authority.certificate("spiffe://org/batch", "Batch.example", unit="paid", file="batch")
        )
        for _ in range(2):
            with Client(server.port, tls=context) as client:
                _, units, names, _ = client.get("/").json["certificate"]
                assert (units, names) == (["paid"], [["URI", "spiffe://org/batch"], ["DNS", "Batch.example"]])
        with server.client() as client:
            assert client.get("/").json["certificate"] is None

    def test_a_certificate_of_another_authority_is_refused(
        self, server: Server, authority: Authority, tmp_path: Path
    ) -> None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(*Authority(tmp_path).certificate("batch.example"))
        with pytest.raises((ssl.SSLError, ConnectionError)), Client(server.port, tls=context) as client:
            # With TLS 1.3 the client hears of it after its own part of the handshake.
            client.get("/")

    def test_a_revoked_certificate_is_refused(
        self, authority: Authority, files: dict[str, str], trust: ssl.SSLContext, tmp_path: Path
    ) -> None:
        good, revoked = authority.certificate("good.example"), authority.certificate("revoked.example")
        tls = {**files, "tls_client_ca": str(authority.revoke(revoked[0]))}
        with Server(tmp_path, tls=tls, trust=trust) as server:
            context = ssl.create_default_context(cafile=str(authority.ca))
            context.load_cert_chain(*good)
            with Client(server.port, tls=context) as client:
                assert client.get("/").status == 200
            context.load_cert_chain(*revoked)
            with pytest.raises((ssl.SSLError, ConnectionError)), Client(server.port, tls=context) as client:
                client.get("/")

    def test_one_that_is_replaced_under_load_loses_no_request(
        self, authority: Authority, trust: ssl.SSLContext, tmp_path: Path
    ) -> None:
        first, key = authority.certificate("127.0.0.1", file="replaced")
        tls = {"tls_cert": str(first), "tls_key": str(key)}
        with Server(tmp_path, tls=tls, trust=trust, workers=2, limits=LENIENT) as server:
            before = shown_by(server, trust)
            with Load(server, 8, reconnect=True) as load:
                for _ in range(2):
                    # Each half at its time, as tools write them: nothing reads the files before HUP.
                    authority.certificate("127.0.0.1", file="replaced")
                    known = len(load.pids)
                    server.signal(signal.SIGHUP)
                    wait_until(lambda known=known: len(load.pids) > known)
            assert load.lost == []
            wait_until(lambda: shown_by(server, trust) != before)


def shown_by(server: Server, trust: ssl.SSLContext) -> bytes:
    with Client(server.port, tls=trust) as client:
        return tls_of(client).getpeercert(binary_form=True) or b""


def _begun(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    """A connection that has sent the first message of its handshake."""
    plain = socket.create_connection(("127.0.0.1", port))
    plain.setblocking(False)
    each = context.wrap_socket(plain, server_hostname="127.0.0.1", do_handshake_on_connect=False)
    assert not _ended(each)
    return each


def _ended(each: ssl.SSLSocket) -> bool:
    """Go on with a handshake; return whether it is done, and close the connection then."""
    try:
        each.do_handshake()
    except ssl.SSLWantReadError:
        return False
    each.close()
    return True
