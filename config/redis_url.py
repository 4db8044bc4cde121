"""A Redis URL with one meaning for all its users: our own clients, Celery's broker, its result backend.

                         ┌─▶ redis_py_url ─▶ redis-py        `redis://`, `rediss://`, `unix://`
    BUNCH_REDIS_URL ─────┤
    BUNCH_BROKER_URL     └─▶ celery_url, tls_options ─▶ kombu, celery.backends.redis

Each of the three has defaults and query options of its own: over `rediss://` redis-py verifies the server, Celery's
backend needs a query option, and kombu verifies nothing. So the TLS options are taken out here and passed to each in
its form, and options that only some of them know are refused.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

_SOCKETS = {"unix", "redis+socket"}
_SCHEMES = {"redis", "rediss", *_SOCKETS}
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = {*_FILES, "ssl_cert_reqs", "ssl_check_hostname"}
# redis-py's and Celery's values. `optional` makes no sense for a client, which always gets a certificate.
_VERIFY = {"required": True, "CERT_REQUIRED": True, "none": False, "CERT_NONE": False}
_SWITCH = {"true": True, "false": False}


def problem_of(url: str) -> str:
    """The problem with a URL and its remedy; empty when it is valid."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        return "must start with redis://, rediss:// or unix://"
    try:
        _ = parts.port
    except ValueError:
        return "must have a port number up to 65535"
    return _wrong_database(parts) or _wrong_options(parts)


def redis_py_url(url: str) -> str:
    """The URL in redis-py's form."""
    parts = urlsplit(url)
    if parts.scheme in _SOCKETS:
        # `geturl` does not write these schemes correctly when there is no host.
        return f"unix://{parts.netloc}{parts.path}?db={_database(parts)}"
    tls = tls_options(url)
    if tls is None:
        return url
    verify = tls["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    return parts._replace(query=urlencode({**tls, "ssl_cert_reqs": "required" if verify else "none"})).geturl()


def celery_url(url: str) -> str:
    """The URL in kombu's and Celery's form: their spelling of a Unix socket, and no TLS options."""
    parts = urlsplit(url)
    if parts.scheme in _SOCKETS:
        return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={_database(parts)}"
    return parts._replace(query="").geturl()


def tls_options(url: str) -> dict[str, Any] | None:
    """The value of `broker_use_ssl` and `redis_backend_use_ssl`; None without TLS.

    Unless the URL says otherwise, the server's certificate and host name are verified against the system's authorities.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return None
    given = dict(parse_qsl(parts.query))
    verify = _VERIFY[given.get("ssl_cert_reqs", "required")]
    options: dict[str, Any] = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE,
        "ssl_check_hostname": verify and _SWITCH[given.get("ssl_check_hostname", "true").lower()],
    }
    return options | {name: given[name] for name in _FILES if name in given}


def _database(parts: SplitResult) -> int:
    if parts.scheme in _SOCKETS:
        given = dict(parse_qsl(parts.query))
        return int(given.get("db", given.get("virtual_host", "0")).strip("/") or 0)
    return int(parts.path.strip("/") or 0)


def _wrong_database(parts: SplitResult) -> str:
    try:
        found = _database(parts)
    except ValueError:
        found = -1
    if found >= 0:
        return ""
    if parts.scheme in _SOCKETS:
        return "must name its database as a number: unix:///path/to/socket?db=0"
    return f"must name its database as a number: {parts.scheme}://host:port/0, not /{unquote(parts.path.strip('/'))}"


def _wrong_options(parts: SplitResult) -> str:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"unix": {"db"}, "redis+socket": {"virtual_host"}, "rediss": _TLS}.get(parts.scheme, set())
    unknown = sorted(given.keys() - known)
    if unknown and parts.scheme == "redis" and unknown[0] in _TLS:
        return f"has {unknown[0]}, which is for TLS: write rediss://"
    if unknown and unknown[0] == "db":
        return f"must name its database in the path: {parts.scheme}://host:port/{given['db'] or 0}"
    if unknown:
        allowed = f"; allowed: {', '.join(sorted(known))}" if known else ""
        return f"has {unknown[0]}, which some of its clients do not know; remove it{allowed}"
    if given.get("ssl_cert_reqs", "required") not in _VERIFY:
        return "must have ssl_cert_reqs=required or none"
    if given.get("ssl_check_hostname", "true").lower() not in _SWITCH:
        return "must have ssl_check_hostname=true or false"
    return ""
