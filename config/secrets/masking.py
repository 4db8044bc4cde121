"""Masks secrets in values that are shown: one rule for messages, tables, logs and the state file.

A URL keeps its destination, a known secret shows nothing, and the value of an unknown name is shown only if it cannot
be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from config.secrets.secret_settings import SECRET_FIELDS

MASK = "…"
PERCENT = "write @ : / ? # in its password as %40 %3A %2F %3F %23"

_URL = re.compile(r"(?P<scheme>((openai|tei|kserve):)?[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>.*)", re.DOTALL)
_HOSTS = re.compile(r"[\w.:,\[\]-]*")
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}")
_PLAIN_VALUE = re.compile(r"[\w./-]*")
_NAMED = frozenset({"password", "username", "user", "token"})
# Query options of a connection that are never secret.
_PLAIN = frozenset(
    {"db", "virtual_host", "timeout", "health_check_interval", "protocol", "max_connections", "sslmode"}
    | {"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "socket_timeout"}
    | {"socket_connect_timeout", "socket_keepalive", "connect_timeout", "application_name"}
)


def masked_url(url: str) -> str:
    """A URL without its user's password, secrets in its query, and fragment. Text that is not a URL or `host:port` is
    masked.

    Where password and host cannot be told apart (`@` after a raw `/`, `?` or `#`), only the scheme is left.
    """
    found = _URL.fullmatch(url)
    if found is None:
        return url if not url or _ADDRESS.fullmatch(url) else MASK
    scheme, rest = found["scheme"], found["rest"]
    authority, behind = _split(rest)
    if "@" in behind:
        return scheme + MASK
    credential, at, hosts = authority.rpartition("@")
    if not _HOSTS.fullmatch(hosts) or (not at and ":" in hosts and not _has_ports(hosts)):
        return scheme + MASK
    user, _, password = credential.partition(":")
    # A user name without a password is often a token.
    shown = f"{user}:{MASK}@" if password else f"{MASK}@" if at else ""
    path, mark, query = behind.partition("?")
    if "#" in path:
        return scheme + shown + hosts + path.partition("#")[0] + f"#{MASK}"
    return scheme + shown + hosts + path + (mark and f"?{_masked_query(query)}")


def shown(field: str, value: object) -> object:
    """A value of the setting `field`, in a form that may be printed."""
    if field in SECRET_FIELDS:
        return masked_url(value) if field.endswith("_url") and isinstance(value, str) else MASK
    return masked_url(value) if isinstance(value, str) and "://" in value else value


def shown_of_unknown(value: object) -> object:
    """The value of an unknown name, which may be a misspelt secret; numbers and booleans are shown."""
    return value if isinstance(value, bool | int | float) or str(value).isdigit() else MASK


def names_of(options: Mapping[str, Any]) -> str:
    """The names in a model's `options`, without the values, any of which may be a credential."""
    return ", ".join(options) or "none"


def _split(rest: str) -> tuple[str, str]:
    """The authority of a URL, and the rest."""
    end = next((index for index, each in enumerate(rest) if each in "/?#"), len(rest))
    return rest[:end], rest[end:]


def _has_ports(hosts: str) -> bool:
    """Return whether each host is `host:port` with a number; anything else after a colon may be part of a password."""
    return all(re.fullmatch(r"([\w.-]*|\[[\w.:]*\])(:\d{0,5})?", host) for host in hosts.split(","))


def _masked_query(query: str) -> str:
    """The query with values that are known to be safe, and the names of passwords; the rest may be part of a secret."""
    query, mark, _ = query.partition("#")
    return "&".join(map(_masked_pair, query.split("&"))) + (mark and f"#{MASK}")


def _masked_pair(pair: str) -> str:
    name, _, value = pair.partition("=")
    if name in _PLAIN and _PLAIN_VALUE.fullmatch(value):
        return pair
    return f"{name}={MASK}" if name in _NAMED else MASK
