"""The settings of who may ask: what fits together, and that no secret is ever printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import SettingsError
from config.settings import Settings, load_settings

TOKEN = "a-token-that-is-long-enough"
SECRET = "a shared secret of more than thirty-two bytes"
JWKS = "/etc/bunch/jwks.json"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems_of(**named: str) -> dict[str, str]:
    environ = {f"BUNCH_{name.upper()}": value for name, value in named.items()}
    with pytest.raises(SettingsError) as caught:
        load_settings(environ)
    return {each.key: str(each) for each in caught.value.problems}


def settings_of(**named: str) -> Settings:
    return load_settings({f"BUNCH_{name.upper()}": value for name, value in named.items()})


@pytest.mark.parametrize(
    ("auth", "keys", "tokens"),
    [("off", False, False), ("keys", True, False), ("jwt", False, True), ("keys,jwt", True, True)],
)
def test_which_credentials_are_taken(auth: str, keys: bool, tokens: bool) -> None:
    settings = settings_of(auth=auth, jwt_secret=SECRET)
    assert (settings.takes_keys, settings.takes_tokens) == (keys, tokens)


def test_strangers_are_served_only_with_auth() -> None:
    assert "BUNCH_AUTH" in problems_of(http_host="0.0.0.0")["BUNCH_HTTP_HOST"]
    assert settings_of(http_host="0.0.0.0", auth="keys").http_host == "0.0.0.0"


@pytest.mark.parametrize(
    ("named", "key", "fix"),
    [
        ({"auth": "none"}, "BUNCH_AUTH", "none"),
        ({"auth": "jwt"}, "BUNCH_AUTH", "BUNCH_JWT_JWKS"),
        ({"auth": "jwt", "jwt_secret": "short"}, "BUNCH_JWT_SECRET", "32 bytes"),
        ({"auth": "jwt", "jwt_secret": f"-----BEGIN PUBLIC KEY-----{SECRET}"}, "BUNCH_JWT_SECRET", "BUNCH_JWT_JWKS"),
        ({"auth": "jwt", "jwt_jwks": "http://issuer.example/jwks"}, "BUNCH_JWT_JWKS", "https"),
        ({"auth": "jwt", "jwt_jwks": JWKS, "jwt_algorithms": "none"}, "BUNCH_JWT_ALGORITHMS", "RS256"),
        ({"auth": "jwt", "jwt_jwks": JWKS, "jwt_algorithms": "RS256,HS256"}, "BUNCH_JWT_ALGORITHMS", "JWT_SECRET"),
        ({"auth": "jwt", "jwt_secret": SECRET, "jwt_algorithms": "RS256"}, "BUNCH_JWT_ALGORITHMS", "JWT_JWKS"),
        ({"service_token": "short"}, "BUNCH_SERVICE_TOKEN", "16"),
        ({"service_token": "one with spaces in it"}, "BUNCH_SERVICE_TOKEN", "spaces"),
        ({"service_token": f"ann:{'x' * 16},{'y' * 16}"}, "BUNCH_SERVICE_TOKEN", "name:token"),
        ({"service_token": f"ann:{'x' * 16},ann:{'y' * 16}"}, "BUNCH_SERVICE_TOKEN", "once"),
        ({"service_token": f"ann:{'x' * 16},ben:short"}, "BUNCH_SERVICE_TOKEN", "16"),
        ({"service_token": f"ann lee:{'x' * 16}"}, "BUNCH_SERVICE_TOKEN", "name:token"),
        ({"auth": "jwt", "jwt_jwks": "https://issuer.example/jwks", "jwt_audience": "us"}, "BUNCH_JWT_ISSUER", "JWKS"),
        ({"auth": "jwt", "jwt_jwks": "https://issuer.example/jwks", "jwt_issuer": "it"}, "BUNCH_JWT_AUDIENCE", "JWKS"),
        ({"auth": "mtls"}, "BUNCH_AUTH", "BUNCH_TLS_CLIENT_CA"),
        ({"auth": "keys,mtls", "tls_client_ca": "/ca"}, "BUNCH_AUTH", "BUNCH_TLS_CERT"),
        ({"tls_cert": "/cert"}, "BUNCH_TLS_KEY", "BUNCH_TLS_CERT"),
        ({"tls_key": "/key"}, "BUNCH_TLS_CERT", "BUNCH_TLS_KEY"),
        ({"tls_cert": "/c", "tls_key": "/k", "tls_client_ca": "/ca"}, "BUNCH_TLS_CLIENT_CA", "mtls"),
        ({"trusted_proxies": "10.0.0.0/8,proxy.example"}, "BUNCH_TRUSTED_PROXIES", "addresses and networks"),
        ({"allowed_hosts": "models.example:443"}, "BUNCH_ALLOWED_HOSTS", "ports"),
        ({"allowed_hosts": "*.example"}, "BUNCH_ALLOWED_HOSTS", "wildcards"),
        ({"database_url": "mysql://h/db"}, "BUNCH_DATABASE_URL", "postgresql://"),
        ({"ledger_retention_days": "-1"}, "BUNCH_LEDGER_RETENTION_DAYS", ">= 0"),
    ],
)
def test_what_does_not_fit_together(named: dict[str, str], key: str, fix: str) -> None:
    line = problems_of(**named)[key]
    assert line.startswith(key)
    assert fix in line


@pytest.mark.parametrize(
    ("named", "algorithms"),
    [
        ({"jwt_jwks": JWKS}, ("RS256", "ES256")),
        ({"jwt_secret": SECRET}, ("HS256",)),
        ({"jwt_jwks": JWKS, "jwt_secret": SECRET}, ("RS256", "ES256", "HS256")),
        ({"jwt_jwks": JWKS, "jwt_algorithms": "ES256"}, ("ES256",)),
        ({"jwt_jwks": JWKS, "jwt_secret": SECRET, "jwt_algorithms": "RS256, HS256"}, ("RS256", "HS256")),
    ],
)
def test_algorithms_are_those_that_there_is_a_key_for(named: dict[str, str], algorithms: tuple[str, ...]) -> None:
    assert settings_of(auth="jwt", **named).token_algorithms == algorithms


@pytest.mark.parametrize(
    "named",
    [
        {"service_token": "hunter2"},
        {"auth": "jwt", "jwt_secret": "hunter2"},
        {"database_url": "mysql://u:hunter2@h/db"},
        {"redis_url": "http://u:hunter2@h"},
        {"service_token": "ann:hunter2,ben"},
        # Misspelt, and so not known to be a secret.
        {"service_tokn": "hunter2"},
        {"servce_token": "hunter2"},
        {"jwt_scret_key": "hunter2"},
        {"database_ulr": "hunter2", "db_password": "hunter2"},
    ],
)
def test_no_secret_is_printed(named: dict[str, str]) -> None:
    assert "hunter2" not in "\n".join(problems_of(**named).values())


def test_tokens_of_operators_have_names_if_there_are_several() -> None:
    assert settings_of(service_token="").service_tokens == {}
    token = "a-token-of-operators"
    assert settings_of(service_token=token).service_tokens == {"operator": token}
    both = settings_of(service_token=f"ann:{token}, ben:x:{token}").service_tokens
    assert both == {"ann": token, "ben": f"x:{token}"}


def test_who_signs_for_others_too_must_be_told_apart_from_them() -> None:
    named = {"auth": "jwt", "jwt_jwks": "https://issuer.example/jwks", "jwt_issuer": "it", "jwt_audience": "us"}
    assert settings_of(**named).jwt_audience == "us"
    for own in (JWKS, "http://127.0.0.1:9/jwks", "https://localhost/jwks"):
        assert settings_of(auth="jwt", jwt_jwks=own).jwt_jwks == own


def test_a_database_is_opened_only_where_it_is_needed() -> None:
    assert not Settings().needs_database
    assert not Settings(auth="jwt", jwt_secret=SECRET, database_url="postgresql://h/db").needs_database
    assert Settings(auth="keys").needs_database
    assert Settings(ledger_retention_days=1).needs_database
