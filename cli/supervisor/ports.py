"""Finds free ports."""

from __future__ import annotations

import errno
import socket
import sys

import psutil

from cli.supervisor.errors import PortTaken

_FLOWER_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A free port, chosen by the kernel; on Linux it stays reserved for the children of this process."""
    holder = _bound(host, 0, listens=False)
    port = int(holder.getsockname()[1])
    if sys.platform == "linux":
        # Bound until this process ends, and not listening: the kernel gives the port to nobody else, while a server
        # that binds it with SO_REUSEADDR, as servers do, may have it. Until then, and between two lives of that, it
        # would be anybody's.
        holder.detach()
    else:
        # A port belongs to the first who binds it, whether he listens or not.
        holder.close()
    return port


def require_free(host: str, port: int, setting: str) -> int:
    """`port`, or a free one when it is 0.

    Raises:
        PortTaken: names the process that listens there, if known, and the setting to change.
    """
    if port == 0:
        return free_port(host)
    try:
        _bound(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is in use{_by(port)}; choose another: {setting}") from error
        raise PortTaken(f"cannot listen on {host} port {port}: {error.strerror}; change {setting}") from error
    return port


def first_free(host: str, port: int) -> int:
    """`port`, or the next free one above it."""
    for candidate in range(port, port + _FLOWER_TRIES):
        try:
            _bound(host, candidate).close()
        except OSError:
            continue
        return candidate
    return free_port(host)


def _bound(host: str, port: int, *, listens: bool = True) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As servers do, so that connections of an earlier run in TIME_WAIT do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Without listening, two sockets with SO_REUSEADDR could share a port.
        if listens:
            listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def _by(port: int) -> str:
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f" by {psutil.Process(each.pid).name()} (pid {each.pid})"
    except psutil.Error:
        pass
    return ""
