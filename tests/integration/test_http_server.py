"""The web server serves requests that are in order, over a raw socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.integration.http_server_harness import Client, Gone, Server, get, post
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("http_server")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


class TestConnections:
    def test_a_connection_carries_one_request_after_the_other(self, client: Client) -> None:
        assert [client.get(path).json["PATH_INFO"] for path in ("/a", "/b")] == ["/a", "/b"]

    def test_pipelined_requests_are_answered_in_order(self, client: Client) -> None:
        client.send(get("/a") + post("/b", b"body") + get("/no-length") + get("/d"))
        assert client.answer().json["PATH_INFO"] == "/a"
        assert client.answer().json["body"] == "body"
        assert client.answer().body == b"onetwo"
        assert client.answer().json["PATH_INFO"] == "/d"

    def test_a_response_does_not_wait_for_the_next_pipelined_one(self, client: Client, server: Server) -> None:
        client.send(get("/a") + get("/events"))
        assert client.answer().json["PATH_INFO"] == "/a"
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
        with server.client() as other:
            other.get("/poke")

    def test_requests_may_arrive_a_byte_at_a_time(self, client: Client) -> None:
        request = post("/drip", b"drops") + get("/after")
        for index in range(len(request)):
            client.send(request[index : index + 1])
        assert client.answer().json["body"] == "drops"
        assert client.answer().json["PATH_INFO"] == "/after"

    def test_blank_lines_before_a_request_are_skipped(self, client: Client) -> None:
        assert client.ask(b"\r\n" + get("/a")).status == 200
        assert client.ask(b"\r\n\r\n" + get("/b")).status == 200

    def test_connection_close_is_honoured(self, client: Client) -> None:
        answer = client.get("/", "Connection: close")
        assert answer.headers["connection"] == "close"
        assert client.is_closed()

    def test_bytes_behind_the_last_request_do_not_cost_its_response(self, client: Client) -> None:
        body = client.ask(post("/", bytes(500_000), "Connection: close") + b"\r\n" + bytes(100_000)).json["body"]
        assert len(body) == 500_000
        assert client.is_closed()

    def test_close_among_other_connection_options(self, client: Client) -> None:
        assert client.get("/", "Connection: TE, Close").headers["connection"] == "close"
        assert client.is_closed()

    def test_http10_closes(self, client: Client) -> None:
        answer = client.ask(b"GET /a HTTP/1.0\r\n\r\n")
        assert answer.json["SERVER_PROTOCOL"] == "HTTP/1.0"
        assert answer.headers["connection"] == "close"
        assert client.is_closed()

    def test_http10_keep_alive(self, client: Client) -> None:
        for _ in range(2):
            answer = client.ask(b"GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
            assert answer.headers["connection"] == "keep-alive"

    def test_http10_without_a_length_ends_with_the_connection(self, client: Client) -> None:
        answer = client.ask(b"GET /no-length HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (answer.body, answer.headers["connection"]) == (b"onetwo", "close")
        assert "transfer-encoding" not in answer.headers

    def test_upgrade_is_ignored(self, client: Client) -> None:
        upgrade = ("Connection: Upgrade", "Upgrade: websocket")
        assert client.get("/a", *upgrade).status == 200
        assert client.ask(post("/b", b"body", *upgrade)).json["body"] == "body"

    def test_nagle_is_off(self, client: Client) -> None:
        assert client.get("/").json["nodelay"] is True


class TestEnviron:
    def test_addresses_and_names(self, client: Client, server: Server) -> None:
        environ = client.get("/").json
        address, port = client.socket.getsockname()
        assert (environ["REMOTE_ADDR"], environ["REMOTE_PORT"]) == (address, str(port))
        assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("127.0.0.1", str(server.port))
        assert environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        assert environ["REQUEST_METHOD"] == "GET"
        assert environ["SCRIPT_NAME"] == ""
        assert environ["wsgi.url_scheme"] == "http"
        assert environ["wsgi.multithread"] is True
        assert environ["wsgi.multiprocess"] is False
        assert environ["wsgi.input_terminated"] is True

    def test_path_is_decoded_and_query_is_not(self, client: Client) -> None:
        environ = client.get("/caf%C3%A9%20x?a=%20b&c=?").json
        assert environ["PATH_INFO"] == "/caf\u00c3\u00a9 x"
        assert environ["PATH_INFO"].encode("latin-1").decode() == "/café x"
        assert environ["QUERY_STRING"] == "a=%20b&c=?"
        assert environ["RAW_URI"] == "/caf%C3%A9%20x?a=%20b&c=?"

    def test_absolute_form_replaces_the_host(self, client: Client) -> None:
        environ = client.ask(b"GET http://example.org:81/a%20b?c=d HTTP/1.1\r\nHost: test\r\n\r\n").json
        assert (environ["PATH_INFO"], environ["QUERY_STRING"]) == ("/a b", "c=d")
        assert environ["HTTP_HOST"] == "example.org:81"
        assert client.ask(b"GET http://test HTTP/1.1\r\nHost: test\r\n\r\n").json["PATH_INFO"] == "/"

    def test_options_asterisk(self, client: Client) -> None:
        assert client.ask(b"OPTIONS * HTTP/1.1\r\nHost: test\r\n\r\n").json["PATH_INFO"] == "*"

    def test_headers(self, client: Client) -> None:
        environ = client.get(
            "/", "X-One: \t a value \t", "x-two: 1", "X-Two: 2", "Content-Type: a/b", "cookie: a=1", "Cookie: b=2",
            "X-Empty:", "X-Latin: caf\u00e9",
        ).json  # fmt: skip
        assert environ["HTTP_X_ONE"] == "a value"
        assert environ["HTTP_X_TWO"] == "1,2"
        assert environ["CONTENT_TYPE"] == "a/b"
        assert environ["HTTP_COOKIE"] == "a=1; b=2"
        assert environ["HTTP_X_EMPTY"] == ""
        assert environ["HTTP_X_LATIN"] == "caf\u00e9"
        assert "HTTP_CONTENT_TYPE" not in environ

    def test_headers_of_one_request_are_not_seen_by_the_next(self, client: Client) -> None:
        client.get("/", "X-Once: 1")
        assert "HTTP_X_ONCE" not in client.get("/").json

    def test_header_names_with_underscores_are_dropped(self, client: Client) -> None:
        environ = client.get("/", "X_Tier: enterprise", "X-Tier: free", "Content_Length: 5").json
        assert environ["HTTP_X_TIER"] == "free"
        assert "CONTENT_LENGTH" not in environ


class TestBodies:
    def test_sized(self, client: Client) -> None:
        environ = client.ask(post("/", b"\x00\xff body")).json
        assert environ["body"] == "\x00\xff body"
        assert environ["CONTENT_LENGTH"] == "7"

    def test_as_large_as_allowed(self, client: Client) -> None:
        assert client.ask(post("/size", bytes(1024 * 1024))).json == 1024 * 1024

    def test_chunked(self, client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: Chunked\r\n\r\n"
        environ = client.ask(head + b'3\r\none\r\n00A;name="v"\r\n two three\r\n0\r\nX-Trailer: 1\r\n\r\n').json
        assert environ["body"] == "one two three"
        assert environ["CONTENT_LENGTH"] == "13"
        assert not {"HTTP_TRANSFER_ENCODING", "HTTP_X_TRAILER"} & set(environ)
        assert client.get("/next").json["PATH_INFO"] == "/next"

    def test_chunked_a_byte_at_a_time_with_a_request_behind(self, client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        request = head + b"3\r\none\r\n4\r\n two\r\n0\r\n\r\n" + get("/next")
        for index in range(len(request)):
            client.send(request[index : index + 1])
        assert client.answer().json["body"] == "one two"
        assert client.answer().json["PATH_INFO"] == "/next"

    def test_an_unread_body_is_not_the_next_request(self, client: Client) -> None:
        assert client.ask(post("/list", get("/smuggled"))).body == b"onetwo"
        assert client.get("/next").json["PATH_INFO"] == "/next"

    def test_expect_continue(self, client: Client) -> None:
        head, body = post("/", b"later", "Expect: 100-continue").split(b"\r\n\r\n")
        assert client.ask(head + b"\r\n\r\n").status == 100
        assert client.ask(body).json["body"] == "later"

    def test_expect_continue_chunked(self, client: Client) -> None:
        head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        assert client.ask(head).status == 100
        assert client.ask(b"5\r\nlater\r\n0\r\n\r\n").json["body"] == "later"

    def test_no_continue_when_the_body_is_there_or_there_is_none(self, client: Client) -> None:
        assert client.ask(post("/", b"now", "Expect: 100-continue")).json["body"] == "now"
        assert client.get("/", "Expect: 100-continue").status == 200

    def test_no_continue_in_http10(self, client: Client) -> None:
        head = b"POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        client.send(head)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.answer()
        client.socket.settimeout(20)
        assert client.ask(b"now").json["body"] == "now"

    def test_no_continue_for_a_body_over_the_limit(self, client: Client) -> None:
        head = f"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {1024**2 + 1}\r\nExpect: 100-continue\r\n\r\n"
        answer = client.ask(head.encode())
        assert (answer.status, answer.json["error"]) == (413, "PAYLOAD_TOO_LARGE")
        assert client.is_closed()


class TestResponses:
    def test_head_has_the_length_and_no_body(self, client: Client) -> None:
        for path in ("/", "/list"):
            length = client.ask(get(path).replace(b"GET", b"HEAD")).headers["content-length"]
            assert int(length) > 0
        assert "content-length" not in client.ask(b"HEAD /no-length HTTP/1.1\r\nHost: test\r\n\r\n").headers
        assert client.get("/next").json["PATH_INFO"] == "/next"

    def test_no_length_is_chunked(self, client: Client) -> None:
        answer = client.get("/no-length")
        assert (answer.body, answer.headers["transfer-encoding"]) == (b"onetwo", "chunked")

    def test_a_list_gets_its_length(self, client: Client) -> None:
        answer = client.get("/list")
        assert (answer.body, answer.headers["content-length"]) == (b"onetwo", "6")

    def test_no_content_has_no_length(self, client: Client) -> None:
        answer = client.get("/empty")
        assert answer.status == 204
        assert not {"content-length", "transfer-encoding"} & set(answer.headers)
        assert client.get("/next").status == 200

    def test_date(self, client: Client) -> None:
        assert client.get("/").headers["date"].endswith(" GMT")

    def test_iterable_is_closed(self, client: Client, server: Server) -> None:
        closed = server.state()["closed"]
        assert client.get("/closing").body == b"ok"
        assert server.state()["closed"] == closed + 1

    def test_parts_are_sent_at_once(self, client: Client, server: Server) -> None:
        client.send(get("/events"))
        client.until(b"\r\n\r\n")
        events = client.chunks()
        assert next(events) == b"data: 1\n\n"
        with server.client() as other:
            other.get("/poke")
        assert list(events) == [b"data: 2\n\n"]

    def test_write(self, client: Client) -> None:
        assert client.get("/write").body == b"written, returned"

    def test_exc_info_replaces_what_was_not_sent(self, client: Client) -> None:
        answer = client.get("/exc-info")
        assert (answer.status, answer.body) == (503, b"sorry")
        assert "x-second" in answer.headers
        assert "x-first" not in answer.headers

    def test_application_closes(self, client: Client) -> None:
        answer = client.get("/says-close")
        assert (answer.json, answer.headers["connection"]) == ("bye", "close")
        assert client.is_closed()

    def test_more_than_the_length_is_cut(self, client: Client) -> None:
        assert client.get("/long").body == b"four"
        assert client.get("/next").json["PATH_INFO"] == "/next"

    def test_less_than_the_length_closes(self, client: Client) -> None:
        with pytest.raises(Gone):
            client.get("/short")


class TestFailingApplications:
    @pytest.mark.parametrize("path", ["/raises", "/leaks-timeout", "/twice", "/never-starts", "/split"])
    def test_500_and_the_connection_goes_on(self, client: Client, path: str) -> None:
        answer = client.get(path, "X-Request-Id: caller-7")
        assert answer.status == 500
        assert answer.json["error"] == "INTERNAL"
        assert answer.json["request_id"] == answer.headers["x-request-id"] == "caller-7"
        assert "broken on purpose" not in answer.json["message"]
        assert client.get("/next").json["PATH_INFO"] == "/next"

    def test_logged_once_with_the_request_id(self, client: Client, server: Server) -> None:
        client.get("/raises", "X-Request-Id: only-here")
        wait_until(lambda: "only-here" in server.log)
        entries = server.log.split("only-here")
        assert len(entries) == 2
        assert "RuntimeError: broken on purpose" in entries[1]

    def test_head_gets_no_body(self, client: Client) -> None:
        assert client.ask(get("/raises").replace(b"GET", b"HEAD")).status == 500
        assert client.get("/next").json["PATH_INFO"] == "/next"

    @pytest.mark.parametrize("path", ["/raises-late", "/exc-info-late"])
    def test_after_the_head_the_connection_breaks(self, client: Client, path: str) -> None:
        client.send(get(path))
        client.until(b"\r\n\r\n")
        received = []
        with pytest.raises((Gone, ConnectionError)):
            received.extend(client.chunks())
        assert received in ([], [b"half"])


class TestClientsThatLeave:
    def test_a_waiting_application_can_notice(self, server: Server) -> None:
        before = server.state()["noticed"]
        with server.client() as client:
            client.send(get("/until-gone?60"))
        wait_until(lambda: server.state()["noticed"] == before + 1)

    def test_a_waiting_client_is_not_gone(self, client: Client, server: Server) -> None:
        before = server.state()["noticed"]
        assert client.get("/until-gone").json == "waited"
        assert server.state()["noticed"] == before

    def test_neither_is_one_that_has_sent_its_next_request(self, client: Client, server: Server) -> None:
        before = server.state()["noticed"]
        client.send(get("/until-gone") + get("/together"))
        client.send(get("/apart"))
        assert client.answer().json == "waited"
        assert [client.answer().json["PATH_INFO"] for _ in range(2)] == ["/together", "/apart"]
        assert server.state()["noticed"] == before

    def test_nor_one_that_has_sent_it_and_sends_no_more(self, client: Client, server: Server) -> None:
        before = server.state()["noticed"]
        client.send(get("/until-gone") + get("/last"))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.answer().json == "waited"
        assert client.answer().json["PATH_INFO"] == "/last"
        assert server.state()["noticed"] == before

    def test_a_stream_nobody_reads_any_more_is_closed(self, server: Server) -> None:
        closed = server.state()["closed"]
        with server.client() as client:
            client.send(get("/endless"))
            client.exactly(100_000)
        wait_until(lambda: server.state()["closed"] == closed + 1)

    def test_a_stream_waits_for_its_reader(self, client: Client, server: Server) -> None:
        client.send(get("/endless"))
        client.until(b"\r\n\r\n")
        seen = [-1, server.state()["written"]]

        def stands_still() -> bool:
            seen.append(server.state()["written"])
            return seen[-1] == seen[-2] == seen[-3]

        wait_until(stands_still)
        client.exactly(10_000_000)
        wait_until(lambda: server.state()["written"] > seen[-1])

    def test_half_a_request_is_never_run(self, server: Server) -> None:
        calls = server.state()["calls"]
        with server.client() as client:
            client.send(post("/", b"body")[:-1])
            client.socket.shutdown(socket.SHUT_WR)
            answer = client.answer()
        assert (answer.status, json.loads(answer.body)["error"]) == (400, "INVALID_INPUT")
        assert server.state()["calls"] == calls
