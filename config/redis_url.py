"""A Redis URL with one meaning for all its users: our own clients, Celery's broker, its result backend.

                         ┌─▶ redis_py_url ─▶ redis-py        `redis://`, `rediss://`, `unix://`
    BUNCH_REDIS_URL ─────┼─▶ sentinels_of ─▶ config.sentinel `sentinel://h1,h2:26379/<name>[/db]`, `rediss+sentinel://`
    BUNCH_BROKER_URL     ├─▶ cluster_of ─▶ config.cluster     `cluster://h1,h2:6379`, `rediss+cluster://`; no broker
                         └─▶ celery_url, tls_options, sentinel_options ─▶ kombu, celery.backends.redis

Each of the three has defaults and query options of its own: over `rediss://` redis-py verifies the server, Celery's
backend needs a query option, and kombu verifies nothing. So the TLS options are taken out here and passed to each in
its form, and options that only some of them know are refused.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

SENTINEL_PORT = 26379
_NODE_PORT = 6379
_SOCKETS = {"unix", "redis+socket"}
_SENTINELS = {"sentinel", "rediss+sentinel"}
_CLUSTERS = {"cluster", "rediss+cluster"}
_TLS_SCHEMES = {"rediss", "rediss+sentinel", "rediss+cluster"}
_SCHEMES = {"redis", "rediss", *_SOCKETS, *_SENTINELS, *_CLUSTERS}
FORMS = "redis://, rediss://, unix://, sentinel://, rediss+sentinel://, cluster:// or rediss+cluster://"
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = {*_FILES, "ssl_cert_reqs", "ssl_check_hostname"}
# redis-py's and Celery's values. `optional` makes no sense for a client, which always gets a certificate.
_VERIFY = {"required": True, "CERT_REQUIRED": True, "none": False, "CERT_NONE": False}
_SWITCH = {"true": True, "false": False}
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/,]+)(?::(\d{1,5}))?")
_OF_SENTINELS = {"sentinel_username", "sentinel_password"}


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels of a URL, the primary that they watch, and the credentials of both."""

    hosts: tuple[tuple[str, int], ...]
    name: str
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    # `tls_options` as pairs; empty without TLS.
    tls: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Some nodes of a cluster, and the credentials of all of them."""

    hosts: tuple[tuple[str, int], ...]
    username: str = ""
    password: str = field(default="", repr=False)
    # `tls_options` as pairs; empty without TLS.
    tls: tuple[tuple[str, Any], ...] = ()


def sentinels_of(url: str) -> Sentinels | None:
    """The sentinels and the primary that a `sentinel://` URL names; None for any other URL. Raises ValueError."""
    parts = _split(url)
    if parts.scheme not in _SENTINELS:
        return None
    hosts, username, password = _several(parts, SENTINEL_PORT)
    given = dict(parse_qsl(parts.query))
    return Sentinels(
        hosts=hosts,
        name=unquote(parts.path.strip("/").partition("/")[0]),
        db=_database(parts),
        username=username,
        password=password,
        sentinel_username=given.get("sentinel_username", ""),
        sentinel_password=given.get("sentinel_password", ""),
        tls=tuple((tls_options(url) or {}).items()),
    )


def is_cluster(url: str) -> bool:
    return url.partition("://")[0] in _CLUSTERS


def cluster_of(url: str) -> Cluster | None:
    """The nodes that a `cluster://` URL names; None for any other URL. Raises ValueError."""
    parts = _split(url)
    if parts.scheme not in _CLUSTERS:
        return None
    hosts, username, password = _several(parts, _NODE_PORT)
    return Cluster(hosts, username, password, tuple((tls_options(url) or {}).items()))


def node_url(url: str, node: str) -> str:
    """The plain URL of one node of a cluster, `node` being its host and port."""
    parts = _split(url)
    credential, at, _ = parts.netloc.rpartition("@")
    scheme = "rediss" if parts.scheme in _TLS_SCHEMES else "redis"
    return urlunsplit((scheme, f"{credential}{at}{node}", "/0", parts.query, ""))


def _several(parts: SplitResult, port: int) -> tuple[tuple[tuple[str, int], ...], str, str]:
    """The hosts of a URL that has several, and its user and password. Raises ValueError."""
    credential, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credential.partition(":")
    return tuple(_host(unquote(each), port) for each in hosts.split(",")), unquote(username), unquote(password)


def _split(url: str) -> SplitResult:
    scheme, sign, rest = url.partition("://")
    if scheme in _SENTINELS | _CLUSTERS:
        # Of several hosts, Python takes an IPv6 address only as the first: some of its versions refuse others.
        rest = rest.replace("[", "%5B").replace("]", "%5D")
    return urlsplit(f"{scheme}{sign}{rest}")


def _host(text: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None or not 0 < int(found[2] or port) <= 65535:
        raise ValueError(f"not a host with a port: {text}")
    return found[1].strip("[]"), int(found[2] or port)


def problem_of(url: str) -> str:
    """The problem with a URL and its remedy; empty when it is valid."""
    try:
        parts = _split(url)
    except ValueError:
        return "must have a host, with an IPv6 address in brackets: redis://[::1]:6379/0"
    if parts.scheme not in _SCHEMES:
        return f"must start with {FORMS}"
    try:
        # Of several hosts, `port` would be nonsense.
        _ = _several(parts, _NODE_PORT) if parts.scheme in _SENTINELS | _CLUSTERS else parts.port
    except ValueError:
        return "must have a port number up to 65535"
    if parts.scheme in _CLUSTERS and parts.path.strip("/"):
        return f"must not name a database, as a cluster has only one: {parts.scheme}://h1:6379,h2:6379"
    if parts.scheme in _SENTINELS and not parts.path.strip("/"):
        return f"must name the primary that the sentinels watch: {parts.scheme}://h1:26379,h2:26379/<name>/0"
    return _wrong_database(parts) or _wrong_options(parts)


def redis_py_url(url: str) -> str:
    """The URL in redis-py's form."""
    parts = _split(url)
    if parts.scheme in _SOCKETS:
        # `geturl` does not write these schemes correctly when there is no host.
        return f"unix://{parts.netloc}{parts.path}?db={_database(parts)}"
    tls = tls_options(url)
    if tls is None:
        return url
    verify = tls["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    return parts._replace(query=urlencode({**tls, "ssl_cert_reqs": "required" if verify else "none"})).geturl()


def celery_url(url: str) -> str:
    """The URL in kombu's and Celery's form: their spelling of a Unix socket, a URL for each sentinel, no options."""
    parts = _split(url)
    if (sentinels := sentinels_of(url)) is not None:
        credential, at, _ = parts.netloc.rpartition("@")
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sentinels.hosts)
        return ";".join(f"sentinel://{credential}{at}{each}/{sentinels.db}" for each in hosts)
    if parts.scheme in _SOCKETS:
        return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={_database(parts)}"
    return parts._replace(query="").geturl()


def tls_options(url: str) -> dict[str, Any] | None:
    """The value of `broker_use_ssl` and `redis_backend_use_ssl`; None without TLS.

    Unless the URL says otherwise, the server's certificate and host name are verified against the system's authorities.
    """
    parts = _split(url)
    if parts.scheme not in _TLS_SCHEMES:
        return None
    given = dict(parse_qsl(parts.query))
    verify = _VERIFY[given.get("ssl_cert_reqs", "required")]
    options: dict[str, Any] = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE,
        "ssl_check_hostname": verify and _SWITCH[given.get("ssl_check_hostname", "true").lower()],
    }
    return options | {name: given[name] for name in _FILES if name in given}


def sentinel_options(url: str) -> dict[str, Any]:
    """The transport options that kombu and Celery's backend want with `sentinel://`; empty for any other URL."""
    sentinels = sentinels_of(url)
    if sentinels is None:
        return {}
    credential = {"username": sentinels.sentinel_username, "password": sentinels.sentinel_password}
    return {"master_name": sentinels.name, "sentinel_kwargs": {k: v for k, v in credential.items() if v}}


def with_tls_files(url: str, ca: str, cert: str, key: str) -> str:
    """The URL with these files of TLS, each where it names none itself; any URL without TLS, or that is none, as it
    is.
    """
    if not uses_tls(url) or problem_of(url):
        return url
    parts = _split(url)
    given = dict(parse_qsl(parts.query))
    files = {name: path for name, path in zip(_FILES, (ca, cert, key), strict=True) if path}
    return parts._replace(query=urlencode(files | given, safe="/")).geturl() if files.keys() - given.keys() else url


def uses_tls(url: str) -> bool:
    return url.partition("://")[0] in _TLS_SCHEMES


def _database(parts: SplitResult) -> int:
    if parts.scheme in _SOCKETS:
        given = dict(parse_qsl(parts.query))
        return int(given.get("db", given.get("virtual_host", "0")).strip("/") or 0)
    path = parts.path.strip("/")
    return int((path.partition("/")[2] if parts.scheme in _SENTINELS else path) or 0)


def _wrong_database(parts: SplitResult) -> str:
    try:
        found = _database(parts)
    except ValueError:
        found = -1
    if found >= 0:
        return ""
    if parts.scheme in _SOCKETS:
        return "must name its database as a number: unix:///path/to/socket?db=0"
    if parts.scheme in _SENTINELS:
        return f"must name its database as a number: {parts.scheme}://h1:26379,h2:26379/<name>/0"
    return f"must name its database as a number: {parts.scheme}://host:port/0, not /{unquote(parts.path.strip('/'))}"


def _wrong_options(parts: SplitResult) -> str:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {
        "unix": {"db"},
        "redis+socket": {"virtual_host"},
        "rediss": _TLS,
        "sentinel": _OF_SENTINELS,
        "rediss+sentinel": _TLS | _OF_SENTINELS,
        "rediss+cluster": _TLS,
    }.get(parts.scheme, set())
    unknown = sorted(given.keys() - known)
    if unknown and parts.scheme in {"redis", "sentinel", "cluster"} and unknown[0] in _TLS:
        secure = "rediss" if parts.scheme == "redis" else f"rediss+{parts.scheme}"
        return f"has {unknown[0]}, which is for TLS: write {secure}://"
    if unknown and unknown[0] == "db" and parts.scheme not in _CLUSTERS:
        return f"must name its database in the path: {parts.scheme}://host:port/{given['db'] or 0}"
    if unknown:
        allowed = f"; allowed: {', '.join(sorted(known))}" if known else ""
        return f"has {unknown[0]}, which some of its clients do not know; remove it{allowed}"
    if given.get("ssl_cert_reqs", "required") not in _VERIFY:
        return "must have ssl_cert_reqs=required or none"
    if given.get("ssl_check_hostname", "true").lower() not in _SWITCH:
        return "must have ssl_check_hostname=true or false"
    return ""
