"""The database as commands use it. SQLAlchemy takes a third of a second to load: only where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from config.errors import Problem
from config.settings import Settings
from tasks.accounts.store.errors import StoreUnavailable

if TYPE_CHECKING:
    from tasks.accounts.store.keys import KeyStore


def key_store(settings: Settings) -> KeyStore:
    """Of a database that is up to date. Raises StoreUnavailable."""
    from tasks.accounts.store.engine import make_engine, migrate
    from tasks.accounts.store.keys import KeyStore

    engine = make_engine(settings)
    migrate(engine)
    return KeyStore(engine)


def prepare_database(settings: Settings, say: Callable[[str], None]) -> None:
    """Bring it up to date before anything starts; one that is away keeps nothing from starting."""
    if not settings.needs_database:
        return
    try:
        key_store(settings)
    except StoreUnavailable as error:
        say(f"{error}; starting without it, and the ops worker keeps trying")


def database_problems(settings: Settings) -> Iterator[Problem]:
    """For `check`."""
    if not settings.needs_database:
        return
    try:
        key_store(settings)
    except StoreUnavailable as error:
        yield Problem("BUNCH_DATABASE_URL", "…", f"must name a database that answers: {error}")
