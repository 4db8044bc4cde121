"""The ledger names the owner's client that sent a request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("request", sa.Column("client_id", sa.String(128)))


def downgrade() -> None:
    op.drop_column("request", "client_id")
