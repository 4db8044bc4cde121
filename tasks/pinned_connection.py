"""Connections to hosts that callers have named: what was checked is what is connected to.

resolve ─▶ addresses ─▶ one that `Target.require` refuses: ForbiddenTarget
            └ connect to one of them, not to the name, whose addresses may be others the next time
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import cache

from config.allowed_hosts import Target

Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """The host's IP addresses, as the system finds them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def checked(target: Target, resolve: Resolve) -> Sequence[str]:
    """The addresses of a host, all of which may be called. Raises OSError, ForbiddenTarget."""
    addresses = resolve(target.host, target.port)
    for each in addresses:
        target.require(each)
    return addresses


def connected(target: Target, addresses: Sequence[str], until: float, tls: ssl.SSLContext | None) -> socket.socket:
    """A connection to the first of these addresses that takes one, with TLS if the URL asks for it. Raises OSError."""
    failed: OSError = OSError("it has no address")
    for tried, address in enumerate(addresses):
        # The first may swallow everything, as IPv6 does where its route is broken.
        most_s = left_s(until) / (len(addresses) - tried)
        try:
            connection = socket.create_connection((address, target.port), most_s)
            break
        except OSError as error:
            failed = error
    else:
        raise failed
    if target.scheme == "http":
        return connection
    try:
        connection.settimeout(left_s(until))
        return (tls or _system_authorities()).wrap_socket(connection, server_hostname=target.host)
    except BaseException:
        connection.close()
        raise


@cache
def _system_authorities() -> ssl.SSLContext:
    """Made once: to read the system's hundred and more authorities takes longer than a delivery."""
    return ssl.create_default_context()


def left_s(until: float) -> float:
    """The seconds until a monotonic time. Raises TimeoutError once it is over."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
