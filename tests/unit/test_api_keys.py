"""API keys: their form, what is kept of them, and a frontend's copy of the table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError

from config.tiers import TIERS, Tier
from tasks.accounts.api_keys import MAX_LENGTH, ApiKey, digest_of, new_key, split_key
from tasks.accounts.key_table import KeyTable
from tasks.errors import BackendUnavailable
from tasks.protocol.caller import Caller
from webapp.identity import keyring
from webapp.identity.keyring import KeyRing


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ring_with(*keys: ApiKey, clock: Clock | None = None) -> KeyRing:
    ring = KeyRing(store=None, clock=clock or Clock())  # type: ignore[arg-type]
    ring.take(KeyTable("database:1", {key.id: key for key in keys}))
    return ring


@pytest.mark.parametrize("tier", TIERS)
def test_a_key_says_what_it_is_and_keeps_its_secret(tier: Tier) -> None:
    key_id, text, digest = new_key(tier)
    assert text.startswith(f"bunch_{tier.value}_{key_id}_")
    parts = split_key(text)
    assert parts is not None
    assert parts[0] == key_id
    assert digest == digest_of(parts[1])
    assert len(parts[1]) * math.log2(62) >= 256


def test_no_two_keys_are_alike() -> None:
    made = [new_key(Tier.FREE) for _ in range(500)]
    assert len({text for _, text, _ in made}) == len({digest for *_, digest in made}) == 500


@given(st.text() | st.from_regex(r"bunch_[a-z]+_[0-9a-z]{10,14}_[0-9A-Za-z]{40,45}", fullmatch=True))
def test_nothing_else_has_the_form_of_one(text: str) -> None:
    parts = split_key(text)
    assert parts is None or (len(parts[0]), len(parts[1])) == (12, 43)
    assert split_key(text + "x" * MAX_LENGTH) is None


def test_a_key_finds_its_caller() -> None:
    key_id, text, digest = new_key(Tier.PAID)
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="acme", tier=Tier.PAID, rpm=7, burst=2))
    assert ring.find(text) == Caller(key_id, "acme", Tier.PAID, 7, 2)


def test_the_tier_is_the_records_whatever_the_text_says() -> None:
    key_id, text, digest = new_key(Tier.FREE)
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="acme", tier=Tier.FREE))
    found = ring.find(text.replace("_free_", "_enterprise_"))
    assert found is not None
    assert found.tier is Tier.FREE


def test_another_secret_another_id_or_no_key_at_all_finds_nobody() -> None:
    key_id, text, digest = new_key(Tier.PAID)
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="acme", tier=Tier.PAID))
    _, other, _ = new_key(Tier.PAID)
    grafted = "_".join([*text.split("_")[:3], other.split("_")[3]])
    for wrong in (other, grafted, text[:-1], text + "0", text.upper(), "", "bunch", "_" * 60):
        assert ring.find(wrong) is None


def test_an_expired_key_finds_nobody_from_that_moment() -> None:
    key_id, text, digest = new_key(Tier.PAID)
    clock = Clock()
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="a", tier=Tier.PAID, expires_at=1001.0), clock=clock)
    assert ring.find(text) is not None
    clock.now = 1001.0
    assert ring.find(text) is None


def test_a_table_without_it_revokes_a_key() -> None:
    key_id, text, digest = new_key(Tier.PAID)
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="a", tier=Tier.PAID))
    assert ring.find(text) is not None
    ring.take(KeyTable("database:2", {}))
    assert ring.find(text) is None


def test_what_is_remembered_is_bounded_and_opens_for_the_same_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_REMEMBERED", 10)
    key_id, text, digest = new_key(Tier.PAID)
    ring = ring_with(ApiKey(id=key_id, digest=digest, owner="acme", tier=Tier.PAID))
    caller = ring.find(text)
    assert caller is not None
    assert ring.find(text) is caller
    for number in range(25):
        # Any word may stand for the tier, so one key can be written in endless ways.
        assert ring.find(text.replace("_paid_", f"_{'x' * (number + 1)}_")) is caller
        assert len(ring._opened) <= 10
    assert ring.find(new_key(Tier.PAID)[1]) is None
    assert len(ring._opened) <= 10


class Table:
    """A `KeyTableStore` in memory."""

    def __init__(self, table: KeyTable) -> None:
        self.table = table
        self.away = False
        self.reads = 0

    def version(self) -> str:
        if self.away:
            raise RedisConnectionError
        return self.table.version

    def read(self) -> KeyTable:
        self.reads += 1
        return self.table


def test_the_copy_follows_the_table_and_outlives_an_outage() -> None:
    key_id, text, digest = new_key(Tier.PAID)
    store = Table(KeyTable("database:1", {key_id: ApiKey(id=key_id, digest=digest, owner="a", tier=Tier.PAID)}))
    ring = KeyRing(store)  # type: ignore[arg-type]
    ring._refresh()
    ring._refresh()
    assert store.reads == 1, "read again, though nothing has changed"
    store.away = True
    ring._refresh()
    assert ring.find(text) is not None
    store.away, store.table = False, KeyTable("", {})
    ring._refresh()
    assert ring.find(text) is not None, "a Redis that lost the table revokes nobody's key"
    store.table = KeyTable("database:2", {})
    ring._refresh()
    assert ring.find(text) is None


def test_before_there_is_a_table_nobody_is_told_that_his_key_is_wrong() -> None:
    ring = KeyRing(store=None)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable):
        ring.find(new_key(Tier.PAID)[1])
    assert ring.find("not a key") is None
    assert not ring.loaded
