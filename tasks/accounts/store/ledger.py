"""The ledger in the database: bulk inserts, and the deletion of old rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import Engine, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from tasks.accounts.ledger import LedgerRow, Row
from tasks.accounts.store.engine import reason_of
from tasks.accounts.store.errors import StoreUnavailable
from tasks.accounts.store.tables import LedgerLine

# Rows per transaction: the more, the more of them share a page of an index.
_CHUNK = 20_000
_OLD_AT_ONCE = 5_000


class LedgerStore:
    """The ledger's table. Every method raises StoreUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        on_postgresql = engine.dialect.name == "postgresql"
        dialect = postgresql if on_postgresql else sqlite
        # A row that exists already was sent twice; the first one is kept.
        insert = dialect.insert(LedgerLine).on_conflict_do_nothing(index_elements=["id"])
        # Compiled once, and given the rows as tuples: half the cost of a dictionary for each row.
        style: Literal["format", "qmark"] = "format" if on_postgresql else "qmark"
        compiled = insert.compile(dialect=dialect.dialect(paramstyle=style), column_keys=LedgerRow._fields)
        self._insert = str(compiled)

    def write(self, rows: Sequence[Row]) -> int:
        """Insert rows. Returns how many the database refuses even one by one; those are lost."""
        refused = 0
        for start in range(0, len(rows), _CHUNK):
            refused += self._write(rows[start : start + _CHUNK])
        return refused

    def delete_before(self, epoch_ms: int) -> int:
        """Delete rows that completed before then. Returns how many; if it is not 0, there may be more."""
        old = select(LedgerLine.id).where(LedgerLine.completed_ms < epoch_ms).limit(_OLD_AT_ONCE)
        try:
            with self._engine.begin() as connection:
                return connection.execute(delete(LedgerLine).where(LedgerLine.id.in_(old))).rowcount
        except SQLAlchemyError as error:
            raise StoreUnavailable(reason_of(error)) from error

    def _write(self, rows: Sequence[Row]) -> int:
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(self._insert, list(rows))
        except (DataError, IntegrityError) as error:
            if len(rows) == 1:
                return 1
            del error
        except SQLAlchemyError as error:
            raise StoreUnavailable(reason_of(error)) from error
        else:
            return 0
        middle = len(rows) // 2
        return self._write(rows[:middle]) + self._write(rows[middle:])
