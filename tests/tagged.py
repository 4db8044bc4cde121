"""A client that reaches all keys of a test, whichever server has them.

a key with a shard's tag                       the node that has the shard
keys by a pattern, clients, subscriptions, …   the home and every primary; the replies are added up
anything else                                  the home
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from redis import Redis

from cli.supervisor.embedded_cluster import PRIMARIES
from config.redis import connect
from config.shards import Places

_TAG = re.compile(rb"\{s(\d+)\}")
_EVERYWHERE = {
    "KEYS", "CLIENT LIST", "CLIENT KILL", "PUBSUB CHANNELS", "PUBSUB SHARDCHANNELS", "SCRIPT FLUSH", "FLUSHALL",
}  # fmt: skip
# Their keys may be in several shards, and the replies are sums.
_OF_MANY_KEYS = {"DEL", "EXISTS", "UNLINK"}


def nodes_of(url: str) -> list[Redis]:
    """A client of each primary that the URL of a cluster of the tests names: they come before their replicas."""
    credentials, _, nodes = url.removeprefix("cluster://").rpartition("@")
    return [connect(f"redis://{credentials}@{each}/0") for each in nodes.split(",")[:PRIMARIES]]


class TaggedRedis(Redis):
    """Goes where the keys of a command are.

    Args:
        home: the client of the server without shards.
        places: the home, and the shards on the cluster.
        nodes: a client of each node of the cluster.
    """

    def __init__(self, home: Redis, places: Places, nodes: Sequence[Redis]) -> None:
        super().__init__(connection_pool=home.connection_pool)
        self._home = home
        self._places = places
        self.servers = [home, *nodes]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in _EVERYWHERE:
            return _sum([_call(each, *args, **options) for each in self.servers])
        if args[0] in _OF_MANY_KEYS:
            return sum(_call(self._of(key), args[0], key, **options) for key in args[1:])
        return _call(self._of(*args[1:]), *args, **options)

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        for each in self.servers:
            yield from each.scan_iter(*args, **options)

    def _of(self, *args: object) -> Redis:
        # A message may contain the names of other shards; the key comes first.
        tag = next((found for each in args if (found := _TAG.search(_raw(each)))), None)
        if tag is None:
            return self._home
        return self._places.numbered(int(tag[1])).redis


def _call(client: Any, *args: Any, **options: Any) -> Any:
    return client.execute_command(*args, **options)


def _raw(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _sum(replies: Sequence[Any]) -> Any:
    first = replies[0]
    if isinstance(first, bool):
        return all(replies)
    if isinstance(first, int | float | list):
        return sum(replies[1:], first)
    return first
