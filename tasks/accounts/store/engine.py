"""Connects to the database that the settings name, and migrates it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from config.secrets.private_files import make_private, touch_private
from config.settings import Settings
from tasks.accounts.store.errors import StoreUnavailable

_FOLDER = Path(__file__).parent / "migrations"
FILE = "bunch.db"
# How long to wait for another process's transaction, or for a server that does not answer.
_PATIENCE_S = 5
# Any number that no other program locks on the same server.
_MIGRATION_LOCK = 0x62756E63


def database_url(settings: Settings) -> URL:
    """The URL from the settings, with the installed driver; by default a file in the state folder."""
    if not settings.database_url:
        return URL.create("sqlite", database=str(Path(settings.state_dir).resolve() / FILE))
    url = make_url(settings.database_url)
    return url.set(drivername="postgresql+psycopg") if url.get_backend_name() in {"postgresql", "postgres"} else url


def make_engine(settings: Settings) -> Engine:
    """Make an engine. It opens no connection yet, and every wait is bounded."""
    url = database_url(settings)
    if url.get_backend_name() == "sqlite":
        if url.database:
            make_private(Path(url.database).parent)
            touch_private(Path(url.database))
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": _PATIENCE_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_immediate)
        return engine
    return sqlalchemy.create_engine(
        url,
        pool_pre_ping=True,
        pool_size=2,
        connect_args={"connect_timeout": _PATIENCE_S, "options": f"-c statement_timeout={_PATIENCE_S * 1000}"},
    )


def migrate(engine: Engine) -> None:
    """Migrate the tables to the newest version. Several processes may do so at once: they take turns."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    try:
        _upgrade(engine, config)
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"the database cannot be migrated: {reason_of(error)}") from error


def reason_of(error: SQLAlchemyError) -> str:
    """The driver's message without the statement and its values, which may hold secrets."""
    cause = getattr(error, "orig", None)
    return " ".join(str(cause or type(error).__name__).split())[:200]


def _upgrade(engine: Engine, config: Config) -> None:
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    # The driver begins transactions by itself, late and not around DDL; `_begin_immediate` does it instead.
    connection.isolation_level = None
    _write_ahead(connection)
    connection.execute("PRAGMA foreign_keys=ON")
    # 32 MiB: enough for the index pages that one transaction of the ledger writes.
    connection.execute("PRAGMA cache_size=-32768")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL, so that readers and one writer do not block each other. The file keeps it: only the first
    switches.
    """
    until = time.monotonic() + _PATIENCE_S
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            # SQLite does not wait here, whatever its timeout (sqlite.org/pragma.html#pragma_busy_timeout).
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _begin_immediate(connection: Connection) -> None:
    # A transaction that reads first and writes later would fail, instead of waiting, if another wrote in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
