"""Detects requests that came through a proxy, by the header fields that proxies add. Such a request may come from
anywhere, whatever address its connection has. A client may add the fields itself, but gains nothing by it.

X-Amzn-Trace-Id is not among them: huggingface_hub sends it itself, and Amazon's balancers add X-Forwarded-Proto too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = (
    *("Forwarded", "Via", "X-Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"),
    *("X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-By", "X-Forwarded-Prefix", "X-Forwarded-Scheme"),
    *("X-Forwarded-Ssl", "X-Forwarded-Protocol", "X-Forwarded-Client-Cert", "X-Forwarded-User", "X-Forwarded-Email"),
    *("X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Path", "X-Forwarded-Groups", "X-Forwarded-Access-Token"),
    *("X-Forwarded-Preferred-Username", "Forwarded-For", "X-Original-Forwarded-For", "X-Original-Host"),
    *("X-Original-URL", "X-Original-For", "X-Original-Proto", "X-Real-IP", "X-Client-IP", "Client-IP"),
    *("X-Cluster-Client-IP", "X-Scheme", "X-Url-Scheme", "X-ProxyUser-Ip", "True-Client-IP", "CF-Connecting-IP"),
    *("CF-Ray", "Fastly-Client-IP", "Fly-Client-IP", "X-Azure-ClientIP"),
    *("X-Envoy-External-Address", "X-Envoy-Expected-Rq-Timeout-Ms", "X-Cloud-Trace-Context"),
)
_KEYS = frozenset("HTTP_" + name.upper().replace("-", "_") for name in _FIELDS)
NOTED = "bunch.forwarded"


def note(environ: dict[str, Any]) -> None:
    """Note the result in the environ of a head that was just parsed; repeated heads copy it."""
    environ[NOTED] = "1" if was_forwarded(environ) else ""


def was_forwarded(environ: Mapping[str, Any]) -> bool:
    return not _KEYS.isdisjoint(environ)
