"""`up --cluster`: three primaries, and their replicas if asked for, of this machine, from the embedded server's binary.

    home: `valkey`, as without a cluster        node-1, node-2, node-3 ◀──replicate── node-4, node-5, node-6
    Celery, keys, metrics, plain clients        the shards of requests                each of another one

To try it with, on one machine; on several, the same is set up by hand (docs/redis.md). The ports are new at each start.
Nodes know each other by ids, which stay: their `nodes.conf` is written before they start, the first time as a whole,
and then with the new addresses. So which of them is a primary, and which slots it has, outlives `up`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.supervisor import ports
from cli.supervisor.embedded_valkey import EmbeddedValkey, share_of_memory
from config.cluster import slots_of
from config.locator import LocatorError
from config.redis_url import cluster_of
from config.secrets.private_files import make_private, write_private

PRIMARIES = 3
_SLOTS = 16384
_NAME_FILE = "cluster.id"
# The first two words of a node's line, as far as they are known: id, address, port of the bus.
_LINE = re.compile(r"^([0-9a-f]{40}) \S*?:\d+@\d+")
# What was true of others when `up` ended.
_PASSING = re.compile(r",(?:fail\??|noaddr|handshake)\b")
_MYSELF = "myself,"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster. `replica_of` is the number of its first primary; None: it is one."""

    cluster: str
    number: int
    host: str
    port: int
    bus_port: int
    replica_of: int | None = None

    @property
    def id(self) -> str:
        return self._hash("node", self.number)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}@{self.bus_port}"

    def line(self, primaries: int) -> str:
        """Its line in the `nodes.conf` of a new cluster."""
        of = self.number if self.replica_of is None else self.replica_of
        first, end = of * _SLOTS // primaries, (of + 1) * _SLOTS // primaries
        kind = f"master - 0 0 {of + 1} connected {first}-{end - 1}"
        if self.replica_of is not None:
            kind = f"slave {self._hash('node', of)} 0 0 {of + 1} connected"
        return f"{self.id} {self.address},,tls-port=0,shard-id={self._hash('shard', of)} {kind}"

    def _hash(self, kind: str, number: int) -> str:
        return hashlib.sha1(f"{self.cluster} {kind} {number}".encode(), usedforsecurity=False).hexdigest()


def nodes_file(nodes: Sequence[Node], myself: Node, primaries: int, earlier: str = "") -> str:
    """The content of `nodes.conf` of one node: all of them know each other from the start.

    `earlier`: what it was. Roles and slots stay, the addresses are those of `nodes`, and nodes that are not in it join.
    """
    ids = {each.id: each for each in nodes}
    lines: dict[str, str] = {}
    tail = f"vars currentEpoch {primaries} lastVoteEpoch 0"
    for line in earlier.splitlines():
        found = _LINE.match(line)
        if found is not None and found[1] in ids:
            node = ids[found[1]]
            lines[node.id] = f"{node.id} {node.address}{_PASSING.sub('', line[found.end() :])}"
        elif line.startswith("vars "):
            tail = line
    for node in nodes:
        if node.id not in lines:
            lines[node.id] = node.line(primaries)
        words = lines[node.id].replace(f" {_MYSELF}", " ", 1).split(" ")
        words[2] = _MYSELF + words[2] if node.id == myself.id else words[2]
        lines[node.id] = " ".join(words)
    return "\n".join([*lines.values(), tail, ""])


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """The nodes of one state folder."""

    servers: tuple[EmbeddedValkey, ...]
    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"cluster://:{self.servers[0].password}@{hosts}"

    @property
    def has_replicas(self) -> bool:
        return len(self.servers) > PRIMARIES

    def prepare(self, server: EmbeddedValkey) -> tuple[str, ...]:
        """Write the configuration of one node. Returns the command that runs it in the foreground."""
        command = server.prepare()
        path = server.folder / server.name / "nodes.conf"
        text = nodes_file(self.nodes, self.nodes[self.servers.index(server)], PRIMARIES, _text(path))
        write_private(path, text.encode())
        return command

    def is_replaced(self, server: EmbeddedValkey) -> bool:
        """Return whether the other nodes, which it asks, find that this one has no slots any more."""
        nodes = cluster_of(self.url)
        assert nodes is not None
        try:
            return all(each.address[1] != server.port for each in slots_of(nodes).owners())
        except LocatorError:
            return False


def clustered(folder: Path, durability: str, max_memory_bytes: int, *, replicas: bool) -> EmbeddedCluster:
    """The nodes of this state folder, with the roles that they had last. Replicas of an earlier start stay: one of them
    may have become a primary.
    """
    make_private(folder)
    name = _text(folder / _NAME_FILE)
    if not name:
        name = secrets.token_hex(16)
        write_private(folder / _NAME_FILE, name.encode())
    count = PRIMARIES
    if replicas or (folder / f"node-{PRIMARIES + 1}/nodes.conf").exists():
        count += PRIMARIES
    password = secrets.token_hex(32)
    memory = (max_memory_bytes or share_of_memory()) // PRIMARIES
    nodes = tuple(
        Node(
            name,
            number,
            "127.0.0.1",
            ports.free_port(),
            ports.free_port(),
            number - PRIMARIES if number >= PRIMARIES else None,
        )
        for number in range(count)
    )
    servers = tuple(
        EmbeddedValkey(
            folder,
            node.port,
            durability,
            memory,
            password,
            name=f"node-{node.number + 1}",
            watched=True,
            bus_port=node.bus_port,
        )
        for node in nodes
    )
    return EmbeddedCluster(servers, nodes)


def _text(path: Path) -> str:
    """The content of a file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
