"""`nodes.conf` of a new cluster, so that its nodes need not be introduced to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_SLOTS = 16384


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a new cluster. `replica_of` is the number of its primary; None: it is one."""

    number: int
    host: str
    port: int
    bus_port: int
    replica_of: int | None = None

    @property
    def id(self) -> str:
        return _id("node", self.number)


def nodes_file(nodes: Sequence[Node], myself: int, primaries: int) -> str:
    """The content of `nodes.conf` of one node of a new cluster: all of them know each other from the start."""
    lines = []
    for node in nodes:
        of = node.number if node.replica_of is None else node.replica_of
        kind = "master" if node.replica_of is None else "slave"
        flags = f"myself,{kind}" if node.number == myself else kind
        primary = "-" if node.replica_of is None else _id("node", of)
        first, end = of * _SLOTS // primaries, (of + 1) * _SLOTS // primaries
        slots = f" {first}-{end - 1}" if node.replica_of is None else ""
        lines.append(
            f"{node.id} {node.host}:{node.port}@{node.bus_port},,tls-port=0,shard-id={_id('shard', of)} "
            f"{flags} {primary} 0 0 {of + 1} connected{slots}"
        )
    return "\n".join([*lines, f"vars currentEpoch {primaries} lastVoteEpoch 0", ""])


def _id(kind: str, number: int) -> str:
    return hashlib.sha1(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest()
