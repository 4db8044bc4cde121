"""Who is on this machine: the one rule for all that loopback alone opens.

What is asked under another name came from a page that lets its own name lead to 127.0.0.1 (DNS rebinding), and what has
passed a proxy came from wherever the proxy is reached; the connection is from loopback in both cases. Opened by it: the
operators' endpoints where no service token is set, and, with auth off, asking at all and choosing a tier.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from config.settings import Settings, is_loopback
from webapp.request import HttpRequest


class Loopback:
    """`listens`: whether connections come from this machine at all."""

    def __init__(self, settings: Settings) -> None:
        self.listens = is_loopback(settings.http_host)
        self._names = settings.host_names

    def has(self, call: HttpRequest) -> bool:
        """Whether a program on this machine asks, and asks this machine."""
        return self.listens and not call.was_forwarded and _is_local(call.header("HTTP_HOST"))

    def serves(self, call: HttpRequest) -> bool:
        """Whether it is asked under one of the other names."""
        host = call.header("HTTP_HOST")
        return host is not None and _hostname(host) in self._names


@lru_cache(maxsize=64)
def _is_local(host: str | None) -> bool:
    """A page's request always names its host."""
    return host is None or is_loopback(_hostname(host))


def _hostname(host: str) -> str:
    """Without its port, in lower case; empty when it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
