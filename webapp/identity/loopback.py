"""Recognises programs on this machine: the one rule for everything that only loopback may use.

A request under another host name comes from a web page whose name resolves to 127.0.0.1 (DNS rebinding), and one that
passed a proxy comes from anywhere; both have a loopback connection. The rule opens the operators' endpoints if no
service token is set and, with auth off, requests at all and the choice of a tier.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from config.settings import Settings, is_loopback
from webapp.request import HttpRequest


class Loopback:
    """`listens`: whether the server listens on loopback only."""

    def __init__(self, settings: Settings) -> None:
        self.listens = is_loopback(settings.http_host)
        self._names = settings.host_names

    def has(self, call: HttpRequest) -> bool:
        """True if a program on this machine sent the request, and sent it to this machine."""
        return self.listens and not call.was_forwarded and _is_local(call.header("HTTP_HOST"))

    def serves(self, call: HttpRequest) -> bool:
        """True if the request is for one of the allowed host names."""
        host = call.header("HTTP_HOST")
        return host is not None and _hostname(host) in self._names


@lru_cache(maxsize=64)
def _is_local(host: str | None) -> bool:
    """True if the host is a name of this machine; a web page's request always has a host."""
    return host is None or is_loopback(_hostname(host))


def _hostname(host: str) -> str:
    """The host without its port, in lower case; empty if it is invalid."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
