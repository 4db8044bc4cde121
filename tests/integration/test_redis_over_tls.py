"""`rediss://` means one thing for our own clients, Celery's broker and Celery's backend; `rediss+sentinel://` too.

The embedded binary has no TLS, so a TLS server of Python's stands in front of it: what is tested is the clients' side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.celery import backend_url
from config.redis import connect
from config.settings import Settings, load_settings
from tasks.app import make_app
from tests.e2e.client import Api
from tests.e2e.stack import PATIENT, Stack
from tests.fakes.sentinel import NamingSentinel
from tests.fakes.tls import Authority, TlsProxy
from tests.valkey import PrivateValkey
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(valkey: PrivateValkey, authority: Authority) -> Iterator[TlsProxy]:
    """Answers to the name `localhost` alone."""
    proxy = TlsProxy(valkey.port, *authority.certificate("localhost"))
    proxy.start()
    yield proxy
    proxy.stop()


def by_our_client(settings: Settings) -> object:
    with connect(settings.redis_url) as client:
        return client.ping()


def by_celerys_broker(settings: Settings) -> object:
    with make_app(settings) as app, app.connection_for_write() as connection:
        return connection.connect()


def by_celerys_backend(settings: Settings) -> object:
    with make_app(settings) as app:
        return app.backend.client.ping()


def by_the_frontends_backend(settings: Settings) -> object:
    with make_app(settings, result_backend=backend_url(settings.redis_url, "bunch.celery_backend:BunchBackend")) as app:
        return app.backend.client.ping()


WAYS = [by_our_client, by_celerys_broker, by_celerys_backend, by_the_frontends_backend]
Way = Callable[[Settings], object]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("host", "options", "let_in"),
    [
        ("localhost", "", False),
        ("localhost", "?ssl_ca_certs={ca}", True),
        ("localhost", "?ssl_cert_reqs=required&ssl_ca_certs={ca}", True),
        ("localhost", "?ssl_cert_reqs=none", True),
        ("localhost", "?ssl_cert_reqs=CERT_NONE", True),
        ("127.0.0.1", "?ssl_ca_certs={ca}", False),
        ("127.0.0.1", "?ssl_ca_certs={ca}&ssl_check_hostname=false", True),
        ("127.0.0.1", "?ssl_cert_reqs=none&ssl_check_hostname=true", True),
    ],
)
def test_all_of_them_verify_the_same(
    server: TlsProxy, authority: Authority, way: Way, host: str, options: str, let_in: bool
) -> None:
    settings = Settings(redis_url=f"rediss://{host}:{server.port}/0{options.format(ca=authority.ca)}")
    if let_in:
        assert way(settings)
    else:
        with pytest.raises(Exception, match=r"(?i)certificate verify failed"):
            way(settings)


@pytest.fixture(scope="module")
def strict(valkey: PrivateValkey, authority: Authority) -> Iterator[TlsProxy]:
    """A server that asks for a client's certificate."""
    proxy = TlsProxy(valkey.port, *authority.certificate("localhost"), clients=authority.ca)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def sentinel(strict: TlsProxy, authority: Authority) -> Iterator[int]:
    """The TLS port of a sentinel that names that server; it asks for a certificate as well."""
    naming = NamingSentinel(("localhost", strict.port))
    proxy = TlsProxy(naming.port, *authority.certificate("localhost"), clients=authority.ca)
    proxy.start()
    yield proxy.port
    proxy.stop()
    naming.stop()


@pytest.mark.parametrize("form", ["rediss", "rediss+sentinel"])
@pytest.mark.parametrize("way", WAYS[:3])
def test_the_files_of_the_settings_are_for_all_of_them_and_for_the_sentinels(
    strict: TlsProxy, sentinel: int, authority: Authority, way: Way, form: str
) -> None:
    url = f"rediss://localhost:{strict.port}/0" if form == "rediss" else f"{form}://localhost:{sentinel}/main/0"
    cert, key = authority.certificate("a client")
    environ = {"BUNCH_REDIS_URL": url, "BUNCH_REDIS_CA": str(authority.ca)}
    ours = {"BUNCH_REDIS_CERT": str(cert), "BUNCH_REDIS_KEY": str(key)}
    assert way(load_settings(environ | ours, role="worker"))
    # A client without a certificate; and one that does not know the authority.
    with pytest.raises(Exception, match=r"(?i)ssl|certificate|closed|reset|broken pipe|no sentinel answers"):
        way(load_settings(environ, role="worker"))
    with pytest.raises(Exception, match=r"(?i)certificate verify failed"):
        way(load_settings({"BUNCH_REDIS_URL": url} | ours, role="worker"))


def test_a_whole_stack_over_tls(server: TlsProxy, authority: Authority, tmp_path: Path) -> None:
    stack = Stack(tmp_path, '[models.echo]\nsource = "workers.models.echo:Echo"\n')
    url = f"rediss://localhost:{server.port}/7?ssl_ca_certs={authority.ca}"
    try:
        stack.start("--web-workers=1", redis_url=url, flower_port=0, **PATIENT)
        assert Api(stack.port).infer("over TLS").status == 200
        ping = stack.manage("check")
        assert "echo" in ping.stdout, ping.stdout + ping.stderr
        wait_until(stack.all_run, what="Flower runs, too")
        stack.stop()
    finally:
        stack.kill()
