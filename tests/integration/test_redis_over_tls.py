"""`rediss://` means one thing for our own clients, Celery's broker and Celery's backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.celery import backend_url
from config.redis import connect
from config.settings import Settings
from tasks.app import make_app
from tests.e2e.client import Api
from tests.e2e.stack import Stack
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


def test_a_whole_stack_over_tls(server: TlsProxy, authority: Authority, tmp_path: Path) -> None:
    stack = Stack(tmp_path, '[models.echo]\nsource = "workers.models.echo:Echo"\n')
    url = f"rediss://localhost:{server.port}/7?ssl_ca_certs={authority.ca}"
    try:
        stack.start("--web-workers=1", redis_url=url, flower_port=0)
        assert Api(stack.port).infer("over TLS").status == 200
        ping = stack.manage("check")
        assert "echo" in ping.stdout, ping.stdout + ping.stderr
        wait_until(stack.all_run, what="Flower runs, too")
        stack.stop()
    finally:
        stack.kill()
