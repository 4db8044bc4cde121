"""The address of the client behind proxies that are named in `BUNCH_TRUSTED_PROXIES`.

    X-Forwarded-For: 203.0.113.9, 198.51.100.7, 10.0.0.2      connection from 10.0.0.1
                     └ anybody's word   ▲      └ named proxies ┘
                                        the first, from the right, that no named proxy has

Whoever is not named is itself the client, whatever it says. `Forwarded` and other fields are not read: a proxy that
does not write them passes on what its client has written.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from config.settings import Settings
from webapp.request import HttpRequest

Address = IPv4Address | IPv6Address


class ClientAddress:
    """Callable: a request to the address of its client, as text; empty on a Unix socket."""

    def __init__(self, settings: Settings) -> None:
        self._networks = settings.proxy_networks
        self._is_proxy = lru_cache(maxsize=1024)(self._is_named)

    def __call__(self, call: HttpRequest) -> str:
        at = call.header("REMOTE_ADDR") or ""
        if not self._networks or not self._is_proxy(at):
            return at
        for text in reversed((call.header("HTTP_X_FORWARDED_FOR") or "").split(",")):
            found = _address(text)
            if found is None:
                break
            at = str(found)
            if not self._is_proxy(at):
                break
        return at

    def _is_named(self, text: str) -> bool:
        found = _address(text)
        return found is not None and any(found in each for each in self._networks)


def _address(text: str) -> Address | None:
    """The address in an entry, which may have a port; None if there is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
