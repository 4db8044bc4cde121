"""Settings about Redis: the embedded server, files of TLS, failover."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.settings import load_settings
from tests.configs import problems_of


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("REDIS_CA", __file__, "write rediss:// or rediss+sentinel://"),
        ("FAILOVER_WAIT_MS", "-1", "Expected"),
        ("FAILOVER_WAIT_MS", "25001", "<= 25000"),
        ("DURABILITY", "none", "memory, second, disk"),
        ("REDIS_MAX_MEMORY_BYTES", "1000", "67108864"),
        ("REDIS_MAX_MEMORY_BYTES", "-1", "Expected"),
    ],
)
def test_what_the_embedded_server_cannot_do_is_refused(name: str, value: str, said: str) -> None:
    assert said in problems_of({f"BUNCH_{name}": value})[f"BUNCH_{name}"]


def test_the_files_of_tls_are_those_of_every_url_and_must_be_there(tmp_path: Path) -> None:
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for each in (ca, cert, key):
        each.touch()
    environ = {
        "BUNCH_REDIS_URL": "rediss://h/0",
        "BUNCH_BROKER_URL": "rediss+sentinel://s/m",
        "BUNCH_REDIS_CA": str(ca),
    }
    settings = load_settings(environ)
    assert settings.redis_url == f"rediss://h/0?ssl_ca_certs={ca}"
    assert settings.broker_url == f"rediss+sentinel://s/m?ssl_ca_certs={ca}"
    # As `up` passes them on.
    again = environ | {"BUNCH_REDIS_URL": settings.redis_url, "BUNCH_BROKER_URL": settings.broker_url}
    assert load_settings(again) == settings

    problems = problems_of(environ | {"BUNCH_REDIS_CERT": str(cert)})
    assert "two files" in problems["BUNCH_REDIS_KEY"]
    problems = problems_of(environ | {"BUNCH_REDIS_CERT": str(cert), "BUNCH_REDIS_KEY": str(tmp_path / "none")})
    assert "PEM" in problems["BUNCH_REDIS_KEY"]


@pytest.mark.parametrize(
    ("url", "given", "held_s"),
    [("redis://h/0", "", 0.0), ("redis://h/0", "700", 0.7), ("sentinel://s/m", "", 5.0), ("sentinel://s/m", "0", 0.0)],
)
def test_requests_are_held_during_a_failover_where_there_is_one(url: str, given: str, held_s: float) -> None:
    environ = {"BUNCH_REDIS_URL": url} | ({"BUNCH_FAILOVER_WAIT_MS": given} if given else {})
    assert load_settings(environ).failover_wait_s == held_s
