"""Alembic's environment: runs on the connection that `tasks.accounts.store.engine.migrate` opened, in its
transaction.
"""

from __future__ import annotations

from alembic import context

from tasks.accounts.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter a column in place; Alembic copies the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
