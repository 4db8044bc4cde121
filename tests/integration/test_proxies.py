"""The recipes of deploy/proxies with the real programs: nginx, HAProxy and Envoy in front of the real server.

A program that is not installed is skipped with a message; `make proxies` installs nginx and HAProxy first, if it can.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.supervisor.ports import free_port
from config.schema import Settings
from tests.fakes.tls import Authority
from tests.integration.http_server_harness import Client, Server, get, post
from tests.integration.test_http_server_lifecycle import Load
from tests.waiting import wait_until
from webapp.identity.client_address import ClientAddress
from webapp.request import HttpRequest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "deploy" / "proxies"
CHART = ROOT / "deploy" / "helm" / "bunch"
# Written by Debian's packages into folders that are not on everybody's path.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_COMMANDS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "nginx": ("nginx", "nginx.conf", ("-t", "-q", "-c"), ("-g", "daemon off;", "-c")),
    "haproxy": ("haproxy", "haproxy.cfg", ("-c", "-q", "-f"), ("-db", "-f")),
    "envoy": ("envoy", "envoy.yaml", ("--mode", "validate", "-l", "error", "-c"), ("--use-dynamic-base-id", "-c")),
}


class Proxy:
    """One program with its recipe, of which ports and files are replaced and nothing else."""

    def __init__(self, name: str, folder: Path, upstream: int, authority: Authority) -> None:
        program, recipe, self._check, self._run = _COMMANDS[name]
        found = shutil.which(program, path=_PATH)
        if found is None:
            pytest.skip(f"{program} is not installed, so {recipe} is not tried: see `make proxies`")
        self._program: str = found
        self.name = name
        self.port = free_port()
        certificate, key = authority.certificate("127.0.0.1", file="proxy")
        both = folder / "tls.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        text = (RECIPES / recipe).read_text()
        for what, by in {
            "/etc/bunch/tls.crt": str(certificate),
            "/etc/bunch/tls.key": str(key),
            "/etc/bunch/tls.pem": str(both),
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "bind :443": f"bind 127.0.0.1:{self.port}",
            "address: 0.0.0.0, port_value: 443": f"address: 127.0.0.1, port_value: {self.port}",
            "127.0.0.1:8000": f"127.0.0.1:{upstream}",
            "port_value: 8000": f"port_value: {upstream}",
            # The tests' application answers everything.
            "worker_processes auto;": f"worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;",
        }.items():
            text = text.replace(what, by)
        self.config = folder / recipe
        self.config.write_text(text)
        self._log = folder / f"{name}.log"
        self._trust = ssl.create_default_context(cafile=str(authority.ca))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            checked = subprocess.run(
                [self._program, *self._check, str(self.config)], stdout=log, stderr=log, timeout=60, check=False
            )
            assert checked.returncode == 0, self._log.read_text()
            self._process = subprocess.Popen(
                [self._program, *self._run, str(self.config)], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, what=self._log.read_text)

    def stop(self) -> None:
        if self._process is not None:
            # nginx' TERM is a quick stop, and reaches its worker.
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def client(self) -> Client:
        return Client(self.port, tls=self._trust)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(OSError), self.client() as client:
            return client.get("/state").status == 200
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), workers=1) as each:
        yield each


@pytest.fixture(scope="module", params=list(_COMMANDS))
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp(request.param)
    each = Proxy(request.param, folder, server.port, Authority(folder))
    try:
        each.start()
        yield each
    finally:
        each.stop()


def environ(proxy: Proxy, *headers: str) -> dict[str, Any]:
    with proxy.client() as client:
        found: dict[str, Any] = client.get("/", *headers).json
        return found


def test_connections_to_the_frontend_are_kept(proxy: Proxy) -> None:
    """Also from one client to the next."""
    ports = []
    for _ in range(6):
        with proxy.client() as client:
            ports += [client.get("/").json["REMOTE_PORT"] for _ in range(3)]
    assert len(set(ports)) <= 2


def test_the_clients_address_is_the_proxys_word_and_not_the_clients(proxy: Proxy) -> None:
    settings = Settings(trusted_proxies="127.0.0.1")
    for said in ("", "203.0.113.9", "203.0.113.9, 198.51.100.1"):
        found = environ(proxy, *([f"X-Forwarded-For: {said}"] if said else []))
        assert found["HTTP_X_FORWARDED_PROTO"] == "https"
        # Of this machine: Envoy writes the address of an interface where the client is on loopback.
        client = found["HTTP_X_FORWARDED_FOR"].rpartition(",")[2].strip()
        assert client not in said
        assert ClientAddress(settings)(HttpRequest(found)) == client
        assert HttpRequest(found).was_forwarded


def test_the_host_and_the_request_id_arrive(proxy: Proxy) -> None:
    found = environ(proxy, "X-Request-Id: mine-1")
    assert found["HTTP_HOST"].startswith("127.0.0.1")
    # Envoy keeps an id that looks like one of its own only from inside; Bunch's answer has the one that arrived.
    assert proxy.name == "envoy" or found["HTTP_X_REQUEST_ID"] == "mine-1"


def test_events_are_passed_on_as_they_come(proxy: Proxy) -> None:
    with proxy.client() as client:
        client.send(get("/events"))
        client.until(b"data: 1\n\n")
        # The next event comes after another request.
        environ(proxy)
        client.until(b"data: 2\n\n")


def test_a_client_that_hangs_up_is_noticed(proxy: Proxy, server: Server) -> None:
    noticed = server.state()["noticed"]
    with proxy.client() as client:
        calls = server.state()["calls"]
        client.send(get("/until-gone?60"))
        wait_until(lambda: server.state()["calls"] > calls)
    wait_until(lambda: server.state()["noticed"] > noticed)


def test_large_bodies_and_answers_pass(proxy: Proxy) -> None:
    with proxy.client() as client:
        assert client.ask(post("/size", b"x" * 900_000)).json == 900_000
        assert len(client.ask(post("/", b"y" * 500_000)).json["body"]) == 500_000


def test_what_is_for_operators_is_not_reached_through_it(proxy: Proxy) -> None:
    for path in ("/metrics", "/internal/health", "/ops", "/ops/events", "//metrics", "/%6detrics"):
        with proxy.client() as client:
            assert client.get(path).status in {404, 400}, path


def test_http_2_is_offered(proxy: Proxy) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", proxy.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        assert secured.selected_alpn_protocol() == "h2"


def test_a_frontend_that_is_replaced_fails_no_request(proxy: Proxy, server: Server) -> None:
    with Load(proxy, 6, reconnect=True) as load:
        for _ in range(2):
            known = len(load.pids)
            server.signal(signal.SIGHUP)
            wait_until(lambda known=known: len(load.pids) > known)
    assert load.lost == []
    assert {status for status, _ in load.answers} == {200}


def test_the_largest_body_is_bunchs_to_refuse() -> None:
    """A proxy's own 413 would not say which setting is meant; HAProxy and Envoy have no limit."""
    for file in (RECIPES / "nginx.conf", ROOT / "docker" / "nginx" / "nginx.conf"):
        (mib,) = re.findall(r"client_max_body_size (\d+)m;", file.read_text())
        assert int(mib) * 2**20 > max(Settings().blob_max_bytes, Settings().max_body_bytes)
    annotations = yaml.safe_load((CHART / "examples" / "two-pools.yaml").read_text())["web"]["ingress"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == f"{mib}m"


def test_recipes_name_what_the_frontend_needs() -> None:
    """All that is looked at where no program is installed."""
    for _, recipe, _, _ in _COMMANDS.values():
        text = (RECIPES / recipe).read_text()
        assert "BUNCH_TRUSTED_PROXIES" in text
        # Kept connections end before the 75 s of the frontend.
        assert re.search(r"(keepalive_timeout 60s|pool-purge-delay 30s|idle_timeout: 60s)", text)
