"""One URL, one meaning: which are refused, and what the others become for redis-py and for Celery."""

from __future__ import annotations

import ssl

import pytest
from redis.connection import parse_url

from config.errors import SettingsError
from config.redis import connect
from config.redis_url import (
    celery_url,
    cluster_of,
    problem_of,
    redis_py_url,
    sentinel_options,
    sentinels_of,
    tls_options,
    with_tls_files,
)
from config.settings import load_settings


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("redis://host", 0),
        ("redis://host/", 0),
        ("redis://user:p%40ss@host:6380/3", 3),
        ("rediss://host:6380/15?ssl_cert_reqs=none", 15),
        ("unix:///run/r.sock", 0),
        ("unix://:secret@/run/r.sock?db=2", 2),
        ("redis+socket:///run/r.sock?virtual_host=4", 4),
        ("redis+socket:///run/r.sock?virtual_host=/4", 4),
    ],
)
def test_all_three_are_led_to_the_same_database(url: str, database: int) -> None:
    assert problem_of(url) == ""
    assert parse_url(redis_py_url(url)).get("db", 0) == database
    spelt = celery_url(url)
    assert spelt.endswith(f"?virtual_host={database}") or int(spelt.rpartition("/")[2].removesuffix("host") or 0) == (
        database
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host/abc", "redis://host:port/0, not /abc"),
        ("rediss://host/0/1", "as a number"),
        ("redis://host/-1", "as a number"),
        ("unix:///run/r.sock?db=first", "?db=0"),
        ("redis://host?db=3", "redis://host:port/3"),
        ("redis://host/0?socket_timeout=1", "socket_timeout"),
        ("redis://host/0?protocol=3", "remove it"),
        ("redis://host/0?ssl_ca_certs=/ca.pem", "rediss://"),
        ("rediss://host/0?ssl_min_version=TLSv1_2", "allowed: ssl_ca_certs"),
        ("rediss://host/0?ssl_cert_reqs=optional", "must have ssl_cert_reqs=required or none"),
        ("rediss://host/0?ssl_check_hostname=maybe", "must have ssl_check_hostname=true or false"),
        ("redis://host:70000/0", "65535"),
        ("http://host/0", "redis://"),
        ("redis://[", "redis://[::1]:6379/0"),
        ("rediss://[", "redis://[::1]:6379/0"),
        ("sentinel://h1:26379,h2", "sentinel://h1:26379,h2:26379/<name>/0"),
        ("sentinel://h1,h2/bunch/first", "sentinel://h1:26379,h2:26379/<name>/0"),
        ("sentinel://h1,h2:99999/bunch", "65535"),
        ("sentinel://h1/bunch?ssl_ca_certs=/ca.pem", "rediss+sentinel://"),
        ("sentinel://h1/bunch?password=x", "allowed: sentinel_password"),
        ("rediss+sentinel://h1/bunch?ssl_cert_reqs=optional", "must have ssl_cert_reqs=required or none"),
        ("cluster://h1,h2:70000", "65535"),
        ("cluster://h1,h2/0", "must not name a database"),
        ("cluster://h1,h2?db=0", "has db"),
        ("cluster://h1?ssl_ca_certs=/ca.pem", "rediss+cluster://"),
        ("rediss+cluster://h1?ssl_cert_reqs=optional", "must have ssl_cert_reqs=required or none"),
    ],
)
def test_what_would_mean_different_things_is_refused_with_what_to_write(url: str, said: str) -> None:
    assert said in problem_of(url)
    for name in ("BUNCH_REDIS_URL", "BUNCH_BROKER_URL"):
        with pytest.raises(SettingsError) as caught:
            load_settings({name: url})
        # A cluster needs a broker besides.
        assert {each.key for each in caught.value.problems} - {"BUNCH_BROKER_URL"} <= {name}
        assert name in [each.key for each in caught.value.problems]


def test_over_tls_the_server_is_verified_unless_the_url_says_otherwise() -> None:
    assert tls_options("redis://host") is None
    assert tls_options("rediss://host") == {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    options = tls_options("rediss://host?ssl_cert_reqs=none&ssl_certfile=/c.pem&ssl_keyfile=/k.pem")
    assert options == {
        "ssl_cert_reqs": ssl.CERT_NONE,
        "ssl_check_hostname": False,
        "ssl_certfile": "/c.pem",
        "ssl_keyfile": "/k.pem",
    }


def test_a_url_of_sentinels_means_the_same_to_our_clients_and_to_celery() -> None:
    url = "rediss+sentinel://me:p%40w@h1:1,[::1]:2,h3/main/4?sentinel_password=s&ssl_ca_certs=/ca.pem"
    assert problem_of(url) == ""
    found = sentinels_of(url)
    assert found is not None
    assert (found.hosts, found.name, found.db) == ((("h1", 1), ("::1", 2), ("h3", 26379)), "main", 4)
    assert (found.username, found.password, found.sentinel_password) == ("me", "p@w", "s")
    assert dict(found.tls) == tls_options(url)
    assert "p@w" not in repr(found)
    spelt = "sentinel://me:p%40w@h1:1/4;sentinel://me:p%40w@[::1]:2/4;sentinel://me:p%40w@h3:26379/4"
    assert celery_url(url) == spelt
    assert sentinel_options(url) == {"master_name": "main", "sentinel_kwargs": {"password": "s"}}
    assert sentinels_of("redis://h1/0") is None
    assert sentinel_options("redis://h1/0") == {}


def test_a_url_of_a_cluster_names_some_of_its_nodes() -> None:
    url = "rediss+cluster://me:p%40w@h1:1,[::1]:2,h3?ssl_ca_certs=/ca.pem"
    assert problem_of(url) == ""
    found = cluster_of(url)
    assert found is not None
    assert found.hosts == (("h1", 1), ("::1", 2), ("h3", 6379))
    assert (found.username, found.password) == ("me", "p@w")
    assert dict(found.tls) == tls_options(url)
    assert "p@w" not in repr(found)
    assert cluster_of("redis://h1/0") is None
    with pytest.raises(ValueError, match="shards only"):
        connect(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h/0", "redis://h/0"),
        ("rediss+cluster://h", "rediss+cluster://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k"),
        ("rediss://h/0", "rediss://h/0?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k"),
        ("rediss://h/0?ssl_ca_certs=/own", "rediss://h/0?ssl_ca_certs=/own&ssl_certfile=/c&ssl_keyfile=/k"),
        ("rediss+sentinel://h/m", "rediss+sentinel://h/m?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k"),
    ],
)
def test_files_of_tls_stand_in_every_url_that_names_none_itself(url: str, expected: str) -> None:
    once = with_tls_files(url, "/ca", "/c", "/k")
    assert once == expected
    assert with_tls_files(once, "/ca", "/c", "/k") == once
