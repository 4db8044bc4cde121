"""The database, for commands. SQLAlchemy takes a third of a second to load, so it is imported only where needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from config.errors import Problem
from config.settings import Settings
from tasks.accounts.store.errors import StoreUnavailable

if TYPE_CHECKING:
    from tasks.accounts.store.keys import KeyStore


def key_store(settings: Settings) -> KeyStore:
    """The key store of a database that is up to date. Raises StoreUnavailable."""
    from tasks.accounts.store.engine import make_engine, migrate
    from tasks.accounts.store.keys import KeyStore

    engine = make_engine(settings)
    migrate(engine)
    return KeyStore(engine)


def prepare_database(settings: Settings, say: Callable[[str], None]) -> None:
    """Migrate the database before anything starts; an unavailable database does not prevent a start."""
    if not settings.needs_database:
        return
    try:
        key_store(settings)
    except StoreUnavailable as error:
        say(f"{error}; starting without it, and the ops worker keeps trying")


def database_problems(settings: Settings) -> Iterator[Problem]:
    """Problems of the database, for `check`."""
    if not settings.needs_database:
        return
    try:
        key_store(settings)
    except StoreUnavailable as error:
        yield Problem("BUNCH_DATABASE_URL", "…", f"must name a database that answers: {error}")
