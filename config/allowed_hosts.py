"""The hosts to which results may be pushed (`BUNCH_CALLBACK_HOSTS`), or from which inputs may be fetched
(`BUNCH_REF_HOSTS`), and the addresses that those hosts may have.

    name            this host, on any port; its address may be private, since the operator has named the host
    name:port       the same, on this port
    *.example.org   any host below this domain, with https and a public address only: who owns the domain may let
                    others choose names and addresses in it

A frontend asks when it takes a request, whoever calls the host again for each address to which it is about to connect.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from config.auth import listed

_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NAME = r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9])?"
_ENTRY = re.compile(rf"(?P<host>(?:\*\.)?{_NAME}|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{{0,4}}))?")
_PORTS = {"https": 443, "http": 80}
_MAX_PORT = 65_535
_CONTROL = re.compile(r"[^!-~]")
# All that is allocated for the public. Python calls more of IPv6 global: IPv4 addresses in deprecated forms, the NAT64
# prefixes of a site (RFC 8215), and site-local addresses.
_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
# Metadata services that are not link-local: EC2's by IPv6, Alibaba Cloud's.
_MACHINES = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class ForbiddenTarget(ValueError):
    """`ForbiddenTarget(why)`: nobody may call that URL or address."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that the list allows, in parts. `named`: by an entry of its own, not by a domain."""

    scheme: str
    host: str
    port: int
    path: str
    named: bool
    setting: str

    @property
    def place(self) -> str:
        """Host and port, as they may be shown: a path may be a secret."""
        return f"{self.authority}:{self.port}" if self.port != _PORTS[self.scheme] else self.authority

    @property
    def authority(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def require(self, address: str) -> None:
        """Raise ForbiddenTarget unless the host may have this IP address."""
        ip = _innermost(ipaddress.ip_address(address.partition("%")[0]))
        is_public = ip.is_global and (ip.version == 4 or ip in _PUBLIC_IPV6)
        is_listed = self.host == str(ip)
        if not is_listed and (ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip in _MACHINES):
            # Where clouds keep the credentials of a machine.
            raise ForbiddenTarget(f"{self.host} has the address {ip}, which is never called")
        if not is_public and not self.named:
            raise ForbiddenTarget(
                f"{self.host} has the private address {ip}; name this host itself in {self.setting} to allow it"
            )
        if is_public and self.scheme == "http":
            raise ForbiddenTarget(f"{self.host} has the public address {ip}, which is called with https only")


@dataclass(frozen=True, slots=True)
class _Entry:
    host: str
    port: int | None

    def matches(self, host: str, port: int) -> bool:
        if self.port not in {None, port}:
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*") else host == self.host


class AllowedHosts:
    """The list, from a setting's text. Raises ValueError with the first entry that is none."""

    setting: ClassVar[str]
    max_url: ClassVar[int] = 2048
    without: ClassVar[str]
    """What an empty list means."""

    def __init__(self, text: str) -> None:
        self._entries = tuple(map(_read, listed(text.lower())))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def target(self, url: str) -> Target:
        """The URL in parts. Raises ForbiddenTarget, with what is wrong with it."""
        if not self._entries:
            raise ForbiddenTarget(f"{self.without}: {self.setting} is empty")
        if len(url) > self.max_url or _CONTROL.search(url):
            raise ForbiddenTarget(f"must be a URL of at most {self.max_url} ASCII characters, without spaces")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise ForbiddenTarget("must be an http or https URL") from None
        if parts.scheme not in _PORTS or not host or port == 0 or "\\" in url:
            raise ForbiddenTarget("must be an http or https URL")
        if "@" in parts.netloc or "#" in url:
            raise ForbiddenTarget("must have neither credentials nor a fragment")
        port = port or _PORTS[parts.scheme]
        host = _canonical(host)
        if not _is_host(host):
            raise ForbiddenTarget("must be an http or https URL with the name of a host, or its address")
        found = [each for each in self._entries if each.matches(host, port)]
        if not found:
            raise ForbiddenTarget(f"{host}:{port} is not among the hosts of {self.setting}")
        named = any(each.host == host for each in found)
        if parts.scheme == "http" and not named:
            raise ForbiddenTarget(f"must be https: {host} is allowed only as a part of its domain")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(parts.scheme, host, port, path, named, self.setting)


class CallbackHosts(AllowedHosts):
    """To which results may be pushed."""

    setting = "BUNCH_CALLBACK_HOSTS"
    without = "this server pushes no results"


class RefHosts(AllowedHosts):
    """From which inputs may be fetched."""

    setting = "BUNCH_REF_HOSTS"
    # A presigned URL has the token of a session in it, which alone may have 2,000 characters.
    max_url = 8192
    without = "this server fetches no inputs"


def _read(text: str) -> _Entry:
    found = _ENTRY.fullmatch(text)
    if not found or int(found["port"] or 1) > _MAX_PORT:
        raise ValueError(text)
    if found["host"].startswith("["):
        ipaddress.IPv6Address(found["host"][1:-1])
    return _Entry(_canonical(found["host"].strip("[]")), int(found["port"]) if found["port"] else None)


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _is_host(host: str) -> bool:
    """Return whether a host in canonical form may exist: no resolver need be asked for any other, again and again."""
    if ":" in host:
        # Nothing but an address has one.
        return True
    return len(host) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, host.split(".")))


def _innermost(ip: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped or ip.sixtofour:
            return ip.ipv4_mapped or ip.sixtofour or ip
        if ip in ipaddress.IPv6Network("64:ff9b::/96"):
            return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip
