"""The database: migrations, keys, the ledger; on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from redis import Redis
from sqlalchemy import Engine, func, select

from config.settings import Settings
from config.tiers import Tier
from tasks.accounts.api_keys import split_key
from tasks.accounts.key_table import KeyTableStore
from tasks.accounts.ledger import COMPLETED, REFUSED, LedgerBuffer, LedgerRow, LedgerStream, RowGroup
from tasks.accounts.store.engine import make_engine, migrate
from tasks.accounts.store.errors import StoreUnavailable, UnknownKey
from tasks.accounts.store.keys import KeyStore
from tasks.accounts.store.ledger import LedgerStore
from tasks.accounts.store.tables import Base, LedgerLine
from tasks.observability import metrics
from tasks.ops.sync import PeriodicSync
from tests.postgres import PrivatePostgres

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PrivatePostgres]:
    server = PrivatePostgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """With auth and ledger on, and an empty database."""
    url = request.getfixturevalue("postgres").new_database() if request.param == "postgresql" else ""
    return Settings(
        auth="keys", ledger_retention_days=30, database_url=url, state_dir=str(tmp_path), redis_url="redis://none"
    )


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = make_engine(settings)
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sync(settings: Settings, redis: Redis, engine: Engine) -> Iterator[PeriodicSync]:
    sync = PeriodicSync(settings, redis, now=NOW.timestamp)
    yield sync
    sync.stop()


def row(number: int, **others: object) -> LedgerRow:
    fields: dict[str, object] = {
        "id": f"id-{number}", "owner": "acme", "tier": "paid", "model": "echo", "status": COMPLETED,
        "created_ms": NOW_MS - 20, "completed_ms": NOW_MS, "latency_ms": 20, "attempts": 1,
    }  # fmt: skip
    return LedgerRow(**(fields | others))  # type: ignore[arg-type]


def group(*numbers: int) -> RowGroup:
    ids, created_ms = [f"id-{number}" for number in numbers], [NOW_MS - 20] * len(numbers)
    return RowGroup(ids, created_ms, "acme", "paid", "echo", COMPLETED, NOW_MS, 1)


def lines(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(LedgerLine)).scalar_one()


def test_the_migrations_make_the_tables_of_the_code(engine: Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_many_may_migrate_at_once(settings: Settings) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        engine = make_engine(settings)
        try:
            migrate(engine)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_key_is_made_listed_and_revoked(engine: Engine) -> None:
    store = KeyStore(engine)
    made = store.create(Tier.PAID, NOW, owner="acme", rpm=90, burst=5, lifetime=timedelta(days=1))
    second = store.create(Tier.FREE, NOW + timedelta(seconds=1), owner="acme")
    newest, oldest = store.rows(NOW + timedelta(seconds=2))
    assert (newest.id, oldest.id) == (second.id, made.id)
    assert (oldest.owner, oldest.tier, oldest.rpm, oldest.burst, oldest.state) == ("acme", "paid", 90, 5, "active")
    assert oldest.expires_at == (NOW + timedelta(days=1)).isoformat()
    assert {row.state for row in store.rows(NOW + timedelta(days=2))} == {"expired", "active"}
    store.revoke(made.id, NOW)
    store.revoke(made.id, NOW + timedelta(days=1))
    assert store.rows(NOW)[1].revoked_at == NOW.isoformat()
    with pytest.raises(UnknownKey):
        store.revoke("nobody's", NOW)


def test_without_an_owner_a_key_is_its_own(engine: Engine) -> None:
    store = KeyStore(engine)
    assert len({store.create(Tier.FREE, NOW).owner for _ in range(3)}) == 3


def test_what_is_kept_of_a_key_does_not_open_anything(engine: Engine) -> None:
    made = KeyStore(engine).create(Tier.PAID, NOW)
    _, secret = split_key(made.secret) or ("", "")
    with engine.connect() as connection:
        kept = [str(each) for table in Base.metadata.sorted_tables for each in connection.execute(select(table))]
    assert secret
    assert secret not in "".join(kept)


def test_every_change_has_a_version_of_its_own(engine: Engine) -> None:
    store = KeyStore(engine)
    versions = [store.version()]
    made = store.create(Tier.PAID, NOW)
    versions.append(store.version())
    store.revoke(made.id, NOW)
    versions += [store.version(), store.usable(NOW)[0]]
    assert len(set(versions)) == 3
    assert versions[2] == versions[3]


def test_keys_reach_redis_and_leave_it_again(engine: Engine, sync: PeriodicSync, redis: Redis) -> None:
    store, table = KeyStore(engine), KeyTableStore(redis)
    sync.publish_keys()
    assert table.read().keys == {}
    assert table.version() == store.version()
    made = store.create(Tier.PAID, NOW, owner="acme", rpm=90)
    gone = store.create(Tier.PAID, NOW, lifetime=timedelta(seconds=1))
    sync.publish_keys()
    found = table.read().keys[made.id]
    assert found.opens_with((split_key(made.secret) or ("", ""))[1])
    assert (found.owner, found.tier, found.rpm, found.burst) == ("acme", Tier.PAID, 90, None)
    assert table.read().keys[gone.id].expires_at == NOW.timestamp() + 1
    store.revoke(made.id, NOW)
    sync.publish_keys()
    assert made.id not in table.read().keys
    redis.flushdb()
    sync.publish_keys()
    assert set(table.read().keys) == {gone.id}


def test_an_older_state_never_comes_last(engine: Engine, redis: Redis) -> None:
    """Somebody who read the keys before a revocation and publishes them after it."""
    store, table = KeyStore(engine), KeyTableStore(redis)
    made = store.create(Tier.PAID, NOW)
    before = store.usable(NOW)
    store.revoke(made.id, NOW)
    assert table.publish(*store.usable(NOW))
    assert not table.publish(*before)
    assert made.id not in table.read().keys


def test_rows_reach_the_database_once(engine: Engine, sync: PeriodicSync, redis: Redis) -> None:
    stream = LedgerStream(redis)
    for start in range(0, 1500, 300):
        assert stream.add([group(*range(start, start + 100)), group(*range(start + 100, start + 300))])
    twice = stream.oldest(1)
    sync.keep_ledger()
    assert lines(engine) == 1500
    assert not redis.exists("bunch:ledger", "bunch:ledger:rows")
    LedgerStore(engine).write(twice[0].rows)
    stream.forget(twice)
    assert lines(engine) == 1500
    assert not redis.exists("bunch:ledger:rows")


def test_what_a_row_says_is_what_is_kept(engine: Engine) -> None:
    said = row(1, owner="jwt:ä", status=REFUSED, error="RATE_LIMITED", attempts=0, client_id="Łaptop 7")
    LedgerStore(engine).write([said])
    with engine.connect() as connection:
        kept = connection.execute(select(LedgerLine.__table__)).one()
    assert tuple(kept) == (
        *("id-1", "jwt:ä", "paid", "echo", REFUSED, NOW_MS - 20, NOW_MS, 20, 0, "RATE_LIMITED"),
        "Łaptop 7",
    )


def test_a_row_that_no_database_takes_costs_only_itself(engine: Engine) -> None:
    rows = [row(number) for number in range(50)]
    rows[17] = row(17, owner=None)
    assert LedgerStore(engine).write(rows) == 1
    assert lines(engine) == 49


def test_old_rows_are_forgotten(engine: Engine, sync: PeriodicSync) -> None:
    month_ms = 30 * 86_400_000
    LedgerStore(engine).write([row(1, completed_ms=NOW_MS - month_ms - 1), row(2, completed_ms=NOW_MS - month_ms + 1)])
    sync.forget_old()
    assert lines(engine) == 1


def test_the_stream_is_bounded_and_what_it_lacks_is_counted(redis: Redis) -> None:
    stream = LedgerStream(redis, max_rows=10)
    buffer = LedgerBuffer(stream)
    dropped = metrics.LEDGER_DROPPED.labels("stream_full")
    before = dropped._value.get()
    for number in range(8):
        buffer.note(group(number))
    buffer.flush()
    for number in range(5):
        buffer.note(group(100 + number))
    buffer.flush()
    assert dropped._value.get() - before == 5
    assert [len(entry.rows) for entry in stream.oldest(10)] == [8]
    stream.forget(stream.oldest(10))
    assert stream.add([group(1)])


def test_a_database_that_is_away_keeps_the_rows_in_the_stream(postgres: PrivatePostgres, redis: Redis) -> None:
    # The server refuses it: not yet there is as good as not there any more.
    settings = Settings(auth="keys", ledger_retention_days=1, database_url=postgres.url("later"))
    engine = make_engine(settings)
    sync = PeriodicSync(settings, redis, now=NOW.timestamp)
    stream = LedgerStream(redis)
    assert stream.add([group(1)])
    with pytest.raises(StoreUnavailable) as caught:
        sync.keep_ledger()
    with pytest.raises(StoreUnavailable):
        sync.publish_keys()
    with pytest.raises(StoreUnavailable):
        migrate(engine)
    assert settings.database_url not in str(caught.value)
    assert len(stream.oldest(10)) == 1
    postgres.create("later")
    migrate(engine)
    sync.keep_ledger()
    assert lines(engine) == 1
    assert stream.oldest(10) == []
    sync.stop()
    engine.dispose()


def test_what_nobody_of_us_wrote_is_passed_over(engine: Engine, sync: PeriodicSync, redis: Redis) -> None:
    redis.xadd("bunch:ledger", {"rows": "rubbish"})
    redis.xadd("bunch:ledger", {"other": "field"})
    assert LedgerStream(redis).add([group(1)])
    sync.keep_ledger()
    assert lines(engine) == 1
    assert LedgerStream(redis).oldest(10) == []
