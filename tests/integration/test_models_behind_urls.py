"""A model behind URLs: TLS with a private authority, replicas, and the forms of other servers, over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.commands import cli
from cli.run.check_apis import api_findings
from config.settings import Settings, load_settings
from tests.fakes.api import DoublingApi
from tests.fakes.tls import Authority, TlsProxy
from workers.models import LoadError, load_model
from workers.models.http import ApiUnavailable


@pytest.fixture(scope="module")
def plain() -> Iterator[DoublingApi]:
    api = DoublingApi()
    api.start()
    yield api
    api.stop()


class Place:
    """A folder with two authorities, the certificates of each, and TLS in front of the API."""

    def __init__(self, folder: Path, plain: DoublingApi) -> None:
        self.folder = folder
        for name in ("ours", "others"):
            (folder / name).mkdir()
        self.ours, self.others = Authority(folder / "ours"), Authority(folder / "others")
        self.client = self.ours.certificate("client")
        self.expired_client = self.ours.certificate("old-client", expired=True)
        self.strange_client = self.others.certificate("client")
        server = self.ours.certificate("127.0.0.1")
        self._proxies = {
            "plain": TlsProxy(plain.server_port, *server),
            "mutual": TlsProxy(plain.server_port, *server, clients=self.ours.ca),
            "expired": TlsProxy(plain.server_port, *self.ours.certificate("127.0.0.1", expired=True)),
            "named": TlsProxy(plain.server_port, *self.ours.certificate("elsewhere.example")),
        }
        for each in self._proxies.values():
            each.start()

    def url(self, which: str) -> str:
        return f"https://127.0.0.1:{self._proxies[which].port}/predict"

    def config(self, which: str, **files: Path) -> Path:
        """A file for a model at one of the addresses; its TLS files relative to the folder."""
        path = self.folder / "bunch.toml"
        keys = "".join(f'{key} = "{file.relative_to(self.folder)}"\n' for key, file in files.items())
        path.write_text(f'[models.m]\nsource = "{self.url(which)}"\n{keys}')
        return path

    def stop(self) -> None:
        for each in self._proxies.values():
            each.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, plain: DoublingApi) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("tls"), plain)
    yield place
    place.stop()


@pytest.fixture
def loaded() -> Iterator[Callable[[Settings], Any]]:
    models: list[Any] = []

    def load(settings: Settings) -> Any:
        models.append(load_model(settings.models["m"]))
        models[-1].load("cpu")
        return models[-1]

    yield load
    for each in models:
        each._client.close()


# Which server, which authority, which client certificate, and what is said; None: it works.
CASES = {
    "the private authority": ("plain", "ours", None, None),
    "both ways": ("mutual", "ours", "client", None),
    "wrong authority": ("plain", "others", None, "set ca_file to that of its authority"),
    "no authority": ("plain", None, None, "set ca_file to that of its authority"),
    "expired": ("expired", "ours", None, "its certificate has expired"),
    "another name": ("named", "ours", None, "its certificate is for another name"),
    "no client certificate": ("mutual", "ours", None, "set cert_file and key_file"),
    "an expired client certificate": ("mutual", "ours", "expired_client", "our client certificate has expired"),
    "a strange client certificate": ("mutual", "ours", "strange_client", "does not trust the issuer of our client"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_handshake_that_fails_says_why_in_the_call_and_in_check(
    place: Place, loaded: Callable[[Settings], Any], name: str
) -> None:
    which, authority, client, said = CASES[name]
    files: dict[str, Path] = {"ca_file": getattr(place, authority).ca} if authority else {}
    if client:
        files |= dict(zip(("cert_file", "key_file"), getattr(place, client), strict=True))
    path = place.config(which, **files)
    settings = load_settings({}, str(path))
    model = loaded(settings)
    found, away = api_findings(settings)
    assert away == []
    if said is None:
        assert model.predict([1, 2], [{}, {}]) == [2, 4]
        assert found == []
        return
    with pytest.raises(ApiUnavailable, match=said) as raised:
        model.predict([1], [{}])
    # Callers read neither files nor names of ours.
    assert said not in raised.value.public
    (problem,) = found
    assert said in problem.fix


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"ca_file": "nowhere.pem"}, "ca_file: there is no file"),
        ({"ca_file": "bunch.toml"}, "has no certificate in PEM form"),
        ({"cert_file": "ours/client.pem"}, "without a key_file"),
        ({"cert_file": "ours/client.pem", "key_file": "others/client.key"}, "must be a certificate and its"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(place: Place, files: dict[str, str], said: str) -> None:
    path = place.config("plain", **{key: place.folder / name for key, name in files.items()})
    with pytest.raises(LoadError, match=said):
        load_model(load_settings({}, str(path)).models["m"])


def test_check_sends_neither_credentials_nor_inputs(
    place: Place, plain: DoublingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.config("plain", ca_file=place.ours.ca)
    secret = 'options = { headers = { Authorization = { env = "SECRET_OF_THE_API" } } }\n'
    path.write_text(path.read_text().replace("https://", "https://user:pass@") + secret)
    monkeypatch.setenv("SECRET_OF_THE_API", "s3cret")
    monkeypatch.setenv("BUNCH_STATE_DIR", str(place.folder / "var"))
    monkeypatch.setenv("BUNCH_HTTP_PORT", "0")
    plain.seen.clear()
    assert CliRunner().invoke(cli, ["check", "--config", str(path)]).exit_code == 0
    ((_, headers, body),) = plain.seen
    path.write_text(path.read_text().replace("ours/ca.pem", "others/ca.pem"))
    failed = CliRunner().invoke(cli, ["check", "--config", str(path)])
    assert failed.exit_code == 1
    assert "[models.m] source = 'https://user:…@127.0.0.1" in failed.stdout
    assert "set ca_file" in failed.stdout
    assert body is None
    assert "Authorization" not in headers


def test_the_callers_trace_and_the_models_headers_go_along(
    place: Place, plain: DoublingApi, loaded: Callable[[Settings], Any]
) -> None:
    (place.folder / "token").write_text("t0ken\n")
    path = place.config("mutual", ca_file=place.ours.ca, cert_file=place.client[0], key_file=place.client[1])
    path.write_text(path.read_text() + 'options = { headers = { X-Token = { file = "token" } } }\n')
    model = loaded(load_settings({}, str(path)))
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    model.continue_trace(trace)
    assert model.predict([3], [{}]) == [6]
    _, headers, _ = plain.seen[-1]
    assert (headers["traceparent"], headers["X-Token"]) == (trace, "t0ken")
