"""Celery's broker and result backend over Sentinel, on the connections that our own clients use.

kombu and Celery ask Sentinel when they connect, and never again: a primary that was replaced while its connections
stayed open (a broken link, a hang) keeps them (celery#6348). `config.sentinel` cuts such connections.
"""

from __future__ import annotations

from typing import Any

from celery.backends.redis import SentinelBackend
from kombu.transport.redis import SentinelChannel, SentinelTransport
from kombu.utils.url import _parse_url
from redis import ConnectionPool

from config.redis_url import SENTINEL_PORT, Sentinels
from config.sentinel import PrimaryConnection, PrimarySSLConnection, primary_of


class PrimaryChannel(SentinelChannel):
    """`SentinelChannel` whose pool connects to the primary that most recently became one."""

    connection_class: Any = PrimaryConnection
    connection_class_ssl: Any = PrimarySSLConnection

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> ConnectionPool:
        options: dict[str, Any] = self._connparams(asynchronous)  # type: ignore[no-untyped-call]
        first = (options.pop("host"), options.pop("port"))
        client = self.connection.client
        urls = [_parse_url(each) for each in client.alt]
        hosts = [(each.hostname, each.port or SENTINEL_PORT) for each in urls] or [first]
        tls = client.ssl if isinstance(client.ssl, dict) else {}
        return _pool(hosts, getattr(self, "master_name", ""), getattr(self, "sentinel_kwargs", {}), tls, options)


class PrimaryTransport(SentinelTransport):
    Channel = PrimaryChannel


class PrimaryBackend(SentinelBackend):
    """`SentinelBackend`, likewise."""

    def _get_pool(self, **params: Any) -> ConnectionPool:
        hosts = [(each["host"], each["port"]) for each in params.pop("hosts")]
        options = self._transport_options
        tls = {name: value for name, value in params.items() if name.startswith("ssl_")}
        params["connection_class"] = PrimarySSLConnection if tls else PrimaryConnection
        return _pool(hosts, options["master_name"], options["sentinel_kwargs"], tls, params)


def _pool(
    hosts: list[tuple[str, int]], name: str, credential: dict[str, str], tls: dict[str, Any], options: dict[str, Any]
) -> ConnectionPool:
    sentinels = Sentinels(
        hosts=tuple((host, int(port)) for host, port in hosts),
        name=name,
        sentinel_username=credential.get("username", ""),
        sentinel_password=credential.get("password", ""),
        tls=tuple(tls.items()),
    )
    return ConnectionPool(located=primary_of(sentinels), **options)
