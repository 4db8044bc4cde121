"""The ledger in the database: rows in, in bulk; old rows out."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine, Insert, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from tasks.ledger import LedgerRow
from tasks.store.engine import reason_of
from tasks.store.errors import StoreUnavailable
from tasks.store.tables import LedgerLine

_CHUNK = 1_000
_OLD_AT_ONCE = 5_000


class LedgerStore:
    """Raises StoreUnavailable throughout."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
        # A row that is there already was sent twice; the first is as good.
        self._insert: Insert = dialect.insert(LedgerLine).on_conflict_do_nothing(index_elements=["id"])

    def write(self, rows: Sequence[LedgerRow]) -> int:
        """Returns how many the database would not take whatever is done, each by itself: they are lost."""
        refused = 0
        for start in range(0, len(rows), _CHUNK):
            refused += self._write(rows[start : start + _CHUNK])
        return refused

    def delete_before(self, epoch_ms: int) -> int:
        """Forget what completed before; returns how many, of which there may be more when it is not 0."""
        old = select(LedgerLine.id).where(LedgerLine.completed_ms < epoch_ms).limit(_OLD_AT_ONCE)
        try:
            with self._engine.begin() as connection:
                return connection.execute(delete(LedgerLine).where(LedgerLine.id.in_(old))).rowcount
        except SQLAlchemyError as error:
            raise StoreUnavailable(reason_of(error)) from error

    def _write(self, rows: Sequence[LedgerRow]) -> int:
        values = [_values(row) for row in rows]
        try:
            with self._engine.begin() as connection:
                connection.execute(self._insert, values)
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


def _values(row: LedgerRow) -> dict[str, object]:
    return {
        "id": row.id,
        "owner": row.owner,
        "tier": row.tier,
        "model": row.model,
        "status": row.status,
        "created_ms": row.created_ms,
        "completed_ms": row.completed_ms,
        "latency_ms": row.latency_ms,
        "attempts": row.attempts,
        "error": row.error or None,
    }
