"""Ports that a supervisor gives to its children."""

from __future__ import annotations

import socket
import sys

import pytest

from cli.supervisor.ports import free_port, require_free


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody else could bind it")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_is_kept_for_its_server_until_it_is_there_and_when_it_is_started_again(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        port = free_port(host)
    except OSError:
        pytest.skip("this machine has no IPv6")
    for _ in range(2):
        with socket.socket(family) as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((host, port))
        with socket.create_server((host, port), family=family) as server, socket.socket(family) as caller:
            caller.connect(server.getsockname())
        with socket.socket(family) as caller, pytest.raises(ConnectionRefusedError):
            caller.connect((host, port))
    assert require_free(host, port, "BUNCH_HTTP_PORT") == port


def test_no_port_is_given_out_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
