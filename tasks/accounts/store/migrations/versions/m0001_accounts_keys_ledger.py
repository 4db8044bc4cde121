"""Accounts, API keys, the ledger."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("account_id", sa.Integer, sa.ForeignKey("account.id"), nullable=False, index=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("rpm", sa.Integer),
        sa.Column("burst", sa.Integer),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "request",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("completed_ms", sa.BigInteger, nullable=False),
        sa.Column("latency_ms", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", sa.String(32)),
    )
    op.create_index("request_by_owner", "request", ["owner", "completed_ms"])
    op.create_index("request_by_time", "request", ["completed_ms"])
    registry = op.create_table(
        "registry",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("database", sa.String(36), nullable=False),
        sa.Column("keys_version", sa.BigInteger, nullable=False),
    )
    # Identifies this database, so that the frontends' copy of another database's keys is not taken for this one's.
    op.bulk_insert(registry, [{"id": 1, "database": str(uuid.uuid4()), "keys_version": 1}])


def downgrade() -> None:
    for table in ("registry", "request", "api_key", "account"):
        op.drop_table(table)
