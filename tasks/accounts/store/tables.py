"""The tables. `migrations/` creates them, and a test compares the two.

account   the owner of keys and requests                1 ─ n  api_key, request (by name: callers with tokens have none)
api_key   one credential; only the digest of its secret
request   the ledger: one row for each finished request
registry  one row: which database this is, and the version of its keys
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, DateTime, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Key(Base):
    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(12), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("account.id"), index=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    tier: Mapped[str] = mapped_column(String(16))
    rpm: Mapped[int | None] = mapped_column(Integer)
    burst: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    expires_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    revoked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class LedgerLine(Base):
    """One row of the ledger. Times are epoch milliseconds, since queries sum over spans of time."""

    __tablename__ = "request"
    __table_args__ = (Index("request_by_owner", "owner", "completed_ms"), Index("request_by_time", "completed_ms"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(128))
    tier: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    created_ms: Mapped[int] = mapped_column(BigInteger)
    completed_ms: Mapped[int] = mapped_column(BigInteger)
    latency_ms: Mapped[int] = mapped_column(Integer)
    attempts: Mapped[int] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(String(32))
    client_id: Mapped[str | None] = mapped_column(String(128))


class Registry(Base):
    __tablename__ = "registry"

    id: Mapped[int] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(String(36))
    keys_version: Mapped[int] = mapped_column(BigInteger)
