"""For `check`: the Redis or Valkey servers that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from config.errors import Problem
from config.masking import PERCENT, masked_url
from config.redis import connect
from config.seal import fingerprint, message_keys
from config.settings import Settings, is_loopback
from tasks.fleet import Fleet
from workers.cli.base import CLUSTER, without_credentials

# What Celery 5.7 and the scripts ask for; Valkey says which Redis it is compatible with.
MIN_REDIS = (6, 2)


def server_problems(settings: Settings) -> Iterator[Problem]:
    """What keeps Bunch from working, or lets others in where callers are told apart."""
    for key, url in _servers(settings).items():
        yield from _server(key, url)
        if must_have_password(settings, url):
            yield from _without_password(key, url)


def server_warnings(settings: Settings) -> Iterator[Problem]:
    """What works, and may not be meant."""
    for key, url in _servers(settings).items():
        if not must_have_password(settings, url):
            yield from _without_password(key, url)


def seal_problems(settings: Settings) -> Iterator[Problem]:
    """Workers that would refuse what a frontend with these settings sends."""
    own = fingerprint(message_keys(settings))
    if not (own and settings.redis_url):
        return
    with contextlib.suppress(RedisError, ValueError):
        for row in Fleet(connect(settings.redis_url, timeout_s=2.0)).healthy():
            if row.seal not in {own, ""}:
                yield Problem(
                    "BUNCH_MESSAGE_SECRET",
                    "…" if settings.message_secret else "",
                    f"worker {row.id} has another one and refuses what is signed here; "
                    "set it, or _FILE, to the same for web and worker of every host",
                )


def must_have_password(settings: Settings, url: str) -> bool:
    """Where callers are told apart, and others than this machine's users may reach the server."""
    host = urlsplit(url).hostname
    return settings.auth != "off" and host is not None and not is_loopback(host)


def _servers(settings: Settings) -> dict[str, str]:
    """The configured ones, each once."""
    servers = {"BUNCH_REDIS_URL": settings.redis_url, "BUNCH_BROKER_URL": settings.broker_url}
    if settings.broker_url == settings.redis_url:
        del servers["BUNCH_BROKER_URL"]
    return {key: url for key, url in servers.items() if url}


def _server(key: str, url: str) -> Iterator[Problem]:
    shown = masked_url(url)
    try:
        client = connect(url, timeout_s=2.0)
        info = client.info()
        policy = client.config_get("maxmemory-policy") if info.get("maxmemory") else {}
    except RedisError as error:
        yield Problem(key, shown, f"must name a Redis or Valkey server that answers: {error}")
        return
    except ValueError:
        # Its text quotes what it could not read, which is a part of the password if one has a raw `/` or `:`.
        yield Problem(key, shown, f"is no URL that a client can read; {PERCENT}")
        return
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    if version < MIN_REDIS:
        yield Problem(key, shown, f"is Redis {info['redis_version']}; 6.2 or newer is needed")
    if info.get("cluster_enabled"):
        yield Problem(key, shown, CLUSTER)
    if policy.get("maxmemory-policy", "noeviction") != "noeviction":
        yield Problem(
            key,
            shown,
            f"throws away what was accepted when memory is full ({policy['maxmemory-policy']}); "
            "set its maxmemory-policy to noeviction",
        )


def _without_password(key: str, url: str) -> Iterator[Problem]:
    if urlsplit(url).scheme not in {"redis", "rediss"}:
        # A socket has the permissions of a file.
        return
    with contextlib.suppress(RedisError, ValueError), connect(without_credentials(url), timeout_s=2.0) as stranger:
        stranger.ping()
        yield Problem(
            key,
            masked_url(url),
            "lets in whoever reaches it, without a password: they can read every result, and ask as anybody; "
            "set requirepass there, and redis://:<password>@host:port/0 here",
        )
