"""The addresses of a real cluster's nodes: as they announce them, over TLS, and of IPv6."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from config.cluster import slots_of
from config.redis import connect
from config.redis_url import cluster_of
from tests.clusters import Clustered
from tests.fakes.tls import Authority, TlsProxy
from tests.waiting import wait_until

TAG = "{s3}"


def test_addresses_are_those_that_nodes_announce_also_over_tls(tmp_path: Path) -> None:
    """As behind NAT: the ports that the nodes listen on are not those that clients may use."""
    authority, nodes = Authority(tmp_path), Clustered()
    proxies: list[TlsProxy] = []
    try:
        nodes.start()
        for number, port in enumerate(nodes.ports):
            proxy = TlsProxy(port, *authority.certificate("localhost"))
            proxy.start()
            proxies.append(proxy)
            for name, value in (
                ("announce-port", proxy.port),
                ("announce-hostname", "localhost"),
                ("preferred-endpoint-type", "hostname"),
            ):
                nodes.ask(number, "CONFIG", "SET", f"cluster-{name}", value)
        announced = {proxy.port for proxy in proxies}
        seed = f"rediss+cluster://:{nodes.PASSWORD}@localhost:{proxies[0].port}?ssl_ca_certs={authority.ca}"
        named = cluster_of(seed)
        assert named is not None
        slots = slots_of(named)

        def all_known() -> bool:
            slots.ask()
            return {*slots._nodes} == {("localhost", port) for port in announced}

        wait_until(all_known, what="the nodes have told each other")
        used = set()
        for tag in ("{s0}", "{s2}", "{s3}"):
            with connect(seed, shard_tag=tag) as client:
                client.set(f"a{tag}", tag)
                connection = client.connection_pool.get_connection()
                used.add(connection.port)
                client.connection_pool.release(connection)
        assert used == announced
        with connect(seed.partition("?")[0], shard_tag=TAG) as client, pytest.raises(RedisError, match="no node"):
            client.ping()
    finally:
        for proxy in proxies:
            proxy.stop()
        nodes.stop()


def test_nodes_have_addresses_of_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    nodes = Clustered(host="::1")
    try:
        with connect(nodes.start().url.rpartition(",")[0], shard_tag=TAG) as client:
            client.set(f"a{TAG}", 1)
            nodes.move(TAG, (nodes.owner(TAG) + 1) % 3)
            assert client.get(f"a{TAG}") == b"1"
    finally:
        nodes.stop()
