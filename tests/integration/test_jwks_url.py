"""Keys of an issuer that are fetched from its URL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from config.settings import Settings
from tests import issuer
from webapp.identity.jwks import KeySet
from webapp.identity.tokens import TokenVerifier


class Issuer:
    """Serves `body` with `status`, and counts how often it was asked."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = issuer.jwks(), 200, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def served() -> Iterator[Issuer]:
    each = Issuer()
    yield each
    each.close()


@pytest.fixture
def keys(served: Issuer) -> KeySet:
    return KeySet(settings_for(served))


def settings_for(served: Issuer) -> Settings:
    return Settings(auth="jwt", jwt_jwks=served.url, jwt_audience=issuer.AUDIENCE, jwt_issuer=issuer.ISSUER)


def test_a_token_is_checked_with_the_key_that_its_issuer_serves(served: Issuer, keys: KeySet) -> None:
    verifier = TokenVerifier(settings_for(served), keys)
    keys.refresh()
    assert verifier.find(issuer.token(time.time())) is not None
    served.body = issuer.jwks(rsa_keys={"rsa-1": 1})
    keys.refresh()
    assert verifier.find(issuer.token(time.time())) is None
    assert verifier.find(issuer.token(time.time(), number=1, key_id="rsa-1")) is not None


@pytest.mark.parametrize(("status", "body"), [(500, b""), (200, b"<html>"), (404, b"{}"), (302, b"")])
def test_an_issuer_in_trouble_costs_no_key(served: Issuer, keys: KeySet, status: int, body: bytes) -> None:
    keys.refresh()
    served.status, served.body = status, body
    keys.refresh()
    assert keys.find("RS256", "rsa-0") is not None


def test_tokens_of_strangers_do_not_make_it_ask_all_day(served: Issuer) -> None:
    now = [0.0]
    keys = KeySet(settings_for(served), lambda: now[0])
    verifier = TokenVerifier(settings_for(served), keys)
    keys.refresh()
    for asked in (1, 2):
        for number in range(25):
            assert verifier.find(issuer.token(time.time(), key_id=f"unknown-{number}")) is None
        assert served.asked == asked
        now[0] += 10.0


def test_without_an_issuer_it_is_not_ready(served: Issuer) -> None:
    served.status = 503
    keys = KeySet(settings_for(served))
    keys.refresh()
    assert not keys.loaded
    served.status = 200
    keys.refresh()
    assert keys.loaded
