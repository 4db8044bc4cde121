"""The commands of docs/backup.md for the database, run as they stand there: what they back up is there again."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.environ import ROOT

pytest.importorskip("sqlalchemy", reason="needs the extra `accounts`")

BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "backup.md").read_text(), re.DOTALL)


def block(command: str) -> str:
    """The only block of the page that runs a command."""
    (only,) = (each for each in BLOCKS if command in each)
    return str(only)


class Place:
    """A folder with `.venv` and `var`, in which an operator types."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BUNCH_")}
        # Nobody listens there: keys are in the database, and their publication is another matter.
        self._environment = kept | {"BUNCH_AUTH": "keys", "BUNCH_REDIS_URL": "redis://127.0.0.1:1/0"} | environment

    def shell(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def create_key(self, owner: str) -> None:
        self.shell(f".venv/bin/python {ROOT}/manage.py keys create --tier paid --owner {owner}")

    def owners(self) -> set[str]:
        listed = self.shell(f".venv/bin/python {ROOT}/manage.py keys list").splitlines()[1:]
        return {line.split()[1] for line in listed}


@pytest.fixture
def postgres() -> Iterator[tuple[str, str]]:
    """The URL of an empty database, and the folder of the tools that fit the server."""
    from tests.postgres import PrivatePostgres

    server = PrivatePostgres()
    try:
        yield server.new_database(), str(server.tools)
    finally:
        server.close()


def test_sqlite_comes_back_as_it_was(tmp_path: Path) -> None:
    place = Place(tmp_path, BUNCH_STATE_DIR=str(tmp_path / "var"))
    place.create_key("before")
    place.shell(block("VACUUM INTO"))
    backup = tmp_path / "bunch-backup.db"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    place.create_key("since")
    place.shell(block("install -m 600 bunch-backup.db"))
    assert stat.S_IMODE((tmp_path / "var" / "bunch.db").stat().st_mode) == 0o600
    assert place.owners() == {"before"}


def test_postgresql_comes_back_as_it_was(tmp_path: Path, postgres: tuple[str, str]) -> None:
    url, tools = postgres
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    place = Place(tmp_path, BUNCH_STATE_DIR=str(tmp_path / "var"), BUNCH_DATABASE_URL=url, PATH=path)
    place.create_key("before")
    place.shell(block("pg_dump"))
    assert stat.S_IMODE((tmp_path / "bunch.dump").stat().st_mode) == 0o600
    place.create_key("since")
    place.shell(block("pg_restore"))
    assert place.owners() == {"before"}
