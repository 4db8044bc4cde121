"""The names on the wire, which other programs rely on."""

from __future__ import annotations

import re

import pytest

from config import keys
from config.keys import Shard
from config.tiers import Tier

NAMES = {
    "queue": lambda shard: shard.queue("minilm", Tier.PAID),
    "result": lambda shard: shard.result("id"),
    "bell": lambda shard: shard.bell("minilm"),
    "lease": lambda shard: shard.lease("b1"),
    "leases": lambda shard: shard.leases("w1"),
    "workers": lambda shard: shard.workers(),
    "worker": lambda shard: shard.worker("w1"),
    "roles": lambda shard: shard.roles(),
    "role": lambda shard: shard.role("r1"),
    "delayed": lambda shard: shard.delayed("minilm"),
    "dead": lambda shard: shard.dead("id"),
    "share": lambda shard: shard.share("minilm"),
    "held": lambda shard: shard.held(shard.queue("minilm", Tier.PAID)),
    "pace": lambda shard: shard.pace("minilm"),
    "capacity": lambda shard: shard.capacity("minilm"),
    "client_quota": lambda shard: shard.client_quota("0f"),
    "quota": lambda shard: shard.quota("k1"),
    "scale": lambda shard: shard.scale(),
    "callback": lambda shard: shard.callback("t"),
    "callbacks": lambda shard: shard.callbacks(),
    "callbacks_bell": lambda shard: shard.callbacks_bell(),
    "cancelled": lambda shard: shard.cancelled(),
    "request": lambda shard: shard.request("r1"),
    "idempotency": lambda shard: shard.idempotency("0f"),
    "asked": lambda shard: shard.asked("0f"),
    "joined": lambda shard: shard.joined("0f"),
    "cached": lambda shard: shard.cached("0f", "3"),
    "kept": lambda shard: shard.kept(),
    "edition": lambda shard: shard.edition("minilm"),
    "arrivals": lambda shard: shard.arrivals(17),
    "flush": lambda shard: shard.flush("f1"),
    "api_keys": lambda shard: shard.api_keys(),
    "api_keys_version": lambda shard: shard.api_keys_version(),
    "ledger": lambda shard: shard.ledger(),
    "ledger_rows": lambda shard: shard.ledger_rows(),
    "metrics": lambda shard: shard.metrics(),
    "rate": lambda shard: shard.rate(17),
    "controls": lambda shard: shard.controls("minilm"),
    "owners": lambda shard: shard.owners("minilm"),
    "reloading": lambda shard: shard.reloading("minilm"),
    "wanted": lambda shard: shard.wanted("minilm"),
    "record": lambda shard: shard.record("all"),
    "record_size": lambda shard: shard.record_size("all"),
    "history": lambda shard: shard.history(),
    "history_turn": lambda shard: shard.history_turn(17),
    "reply_channel": lambda shard: shard.reply_channel("p"),
    "revoked_channel": lambda shard: shard.revoked_channel(),
    "slow": lambda shard: shard.slow(),
    "blob": lambda shard: shard.blob("b"),
    "blobs": lambda shard: shard.blobs(),
    "blob_sizes": lambda shard: shard.blob_sizes(),
    "blobs_kept": lambda shard: shard.blobs_kept(),
    "blob_bytes": lambda shard: shard.blob_bytes(),
}
METHODS = {
    name for name in vars(Shard) if not name.startswith("_") and name not in {"tag", "queues", "priorities", "bindings"}
}


def test_every_name_is_covered_here() -> None:
    assert set(NAMES) == METHODS


def test_the_names_of_the_contract() -> None:
    assert keys.TASK_NAME == "bunch.infer"
    assert keys.OPS_QUEUE == "bunch.ops"
    assert Shard().queues("minilm") == ("bunch.minilm.enterprise", "bunch.minilm.paid", "bunch.minilm.free")
    assert Shard().result("some-id") == "celery-task-meta-some-id"


@pytest.mark.parametrize("name", sorted(METHODS - {"queue", "result"}))
def test_everything_else_starts_with_bunch(name: str) -> None:
    assert NAMES[name](Shard()).startswith("bunch:")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_shards_names_carry_its_tag(name: str) -> None:
    assert "{s3}" in NAMES[name](Shard("{s3}"))
    assert "{" not in NAMES[name](Shard())


def test_names_differ() -> None:
    made = [name(Shard()) for name in NAMES.values()] + [keys.OPS_QUEUE]
    assert len(set(made)) == len(made)


def test_every_name_is_in_the_table_with_type_and_meaning() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", keys.__doc__ or "", re.MULTILINE)
    patterns = [re.compile(re.sub(r"<[^>]+>", "[^:]+", re.escape(name).replace(r"\ ", " "))) for name, *_ in rows]
    for name, make in NAMES.items():
        assert any(pattern.fullmatch(make(Shard())) for pattern in patterns), name
