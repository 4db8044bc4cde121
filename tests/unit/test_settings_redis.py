"""Settings about Redis: the embedded server, files of TLS, failover."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.celery import celery_config
from config.settings import load_settings
from config.shards import open_places
from tests.configs import problems_of


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("REDIS_CA", __file__, "write rediss://, rediss+sentinel:// or rediss+cluster://"),
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


def test_a_cluster_has_sixteen_shards_and_needs_another_redis_for_the_rest() -> None:
    environ = {"BUNCH_REDIS_URL": "cluster://:secret@n1,n2:7000"}
    assert "must be set where" in problems_of(environ)["BUNCH_BROKER_URL"]
    environ["BUNCH_BROKER_URL"] = "redis://home/0"
    settings = load_settings(environ)
    assert (settings.shard_count, settings.home_url, settings.failover_wait_s) == (16, "redis://home/0", 5.0)
    config = celery_config(settings)
    assert (config["broker_url"], config["result_backend"]) == ("redis://home/0", "redis://home/0")
    problems = problems_of(environ | {"BUNCH_BROKER_URL": "cluster://:secret@n1"})
    assert "Celery does not know" in problems["BUNCH_BROKER_URL"]
    assert "secret" not in str(problems)


def test_each_shard_of_a_cluster_has_a_client_of_its_own_even_the_only_one() -> None:
    environ = {"BUNCH_REDIS_URL": "cluster://n1", "BUNCH_BROKER_URL": "redis://home/0"}
    places = open_places(load_settings(environ))
    assert len(places.by_server()) == len(list(places)) == 17
    places = open_places(load_settings(environ | {"BUNCH_SHARDS": "1"}))
    assert [(each.keys.tag, each.redis is places.home.redis) for each in places] == [("{s0}", False), ("", True)]
