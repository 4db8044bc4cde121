"""Accounts and their keys. Every change increments the registry's version in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from config.installation import PROGRAM
from config.tiers import Tier
from tasks.accounts.api_keys import ApiKey, new_key
from tasks.accounts.store.engine import reason_of
from tasks.accounts.store.errors import StoreUnavailable, UnknownKey
from tasks.accounts.store.tables import Account, Key, Registry


class KeyRow(msgspec.Struct, frozen=True):
    """One key as an operator sees it; `state` is active, expired or revoked. Times are ISO 8601, or None."""

    id: str
    owner: str
    tier: str
    rpm: int | None
    burst: int | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    state: str


class NewKey(msgspec.Struct, frozen=True):
    """A new key. Its text is shown to the owner once."""

    id: str
    secret: str
    tier: str
    owner: str


class KeyStore:
    """The keys in the database. Every method raises StoreUnavailable. `now` is an argument everywhere, in UTC."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        tier: Tier,
        now: datetime,
        *,
        owner: str = "",
        rpm: int | None = None,
        burst: int | None = None,
        lifetime: timedelta | None = None,
    ) -> NewKey:
        """Create a key for `owner`. Without an owner the key is an owner of its own and shares its requests with no
        other.
        """
        key_id, secret, digest = new_key(tier)
        name = owner or f"key-{key_id}"
        with self._session() as session:
            account = session.scalar(select(Account).where(Account.name == name))
            if account is None:
                account = Account(name=name, created_at=now)
                session.add(account)
                session.flush()
            session.add(
                Key(
                    id=key_id,
                    account_id=account.id,
                    digest=digest,
                    tier=tier.value,
                    rpm=rpm,
                    burst=burst,
                    created_at=now,
                    expires_at=now + lifetime if lifetime else None,
                    revoked_at=None,
                )
            )
            _count_change(session)
        return NewKey(key_id, secret, tier.value, name)

    def revoke(self, key_id: str, now: datetime) -> None:
        """Revoke a key for good. Revoking it twice is no error. Raises UnknownKey."""
        with self._session() as session:
            key = session.get(Key, key_id)
            if key is None:
                raise UnknownKey(f"there is no key {key_id[:64]!r}; `{PROGRAM} keys list` shows the existing ones")
            if key.revoked_at is None:
                key.revoked_at = now
                _count_change(session)

    def rows(self, now: datetime) -> list[KeyRow]:
        """List all keys, newest first, including revoked and expired ones."""
        with self._session() as session:
            query = select(Key, Account.name).join(Account, Key.account_id == Account.id)
            found = session.execute(query.order_by(Key.created_at.desc(), Key.id)).all()
            return [_row(key, owner, now) for key, owner in found]

    def version(self) -> str:
        with self._session() as session:
            return _version(session)

    def usable(self, now: datetime) -> tuple[str, Sequence[ApiKey]]:
        """Return the version and the keys that frontends may accept, read in one transaction."""
        with self._session() as session:
            query = select(Key, Account.name).join(Account, Key.account_id == Account.id)
            found = session.execute(query.where(Key.revoked_at.is_(None))).all()
            keys = [_api_key(key, owner) for key, owner in found]
            return _version(session), [key for key in keys if not key.expires_at or key.expires_at > now.timestamp()]

    @contextmanager
    def _session(self) -> Iterator[Session]:
        try:
            with Session(self._engine) as session, session.begin():
                yield session
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database cannot be used: {reason_of(error)}") from error


def _version(session: Session) -> str:
    registry = session.get_one(Registry, 1)
    return f"{registry.database}:{registry.keys_version}"


def _count_change(session: Session) -> None:
    session.execute(update(Registry).values(keys_version=Registry.keys_version + 1))


def _api_key(key: Key, owner: str) -> ApiKey:
    return ApiKey(
        id=key.id,
        digest=key.digest,
        owner=owner,
        tier=Tier(key.tier),
        rpm=key.rpm,
        burst=key.burst,
        expires_at=_utc(key.expires_at).timestamp() if key.expires_at else 0.0,
    )


def _row(key: Key, owner: str, now: datetime) -> KeyRow:
    expires = _utc(key.expires_at) if key.expires_at else None
    revoked = _utc(key.revoked_at) if key.revoked_at else None
    state = "revoked" if revoked else "expired" if expires and expires <= now else "active"
    return KeyRow(
        key.id,
        owner,
        key.tier,
        key.rpm,
        key.burst,
        _utc(key.created_at).isoformat(),
        expires.isoformat() if expires else None,
        revoked.isoformat() if revoked else None,
        state,
    )


def _utc(moment: datetime) -> datetime:
    """Add the time zone, which SQLite does not store."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
