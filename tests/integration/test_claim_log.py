"""The commands of a claim are what goes to the log on disk and to a replica: a message is not among them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from batching.claim.lease import parse_lease
from batching.claim.store import Blame, RedisBatchStore
from batching.fast_header import read_fast_header
from config.keys import Shard
from config.tiers import Tier
from tasks.protocol.quota import Quota
from tests.fakes.door import MODEL, Door
from tests.fakes.messages import our_message

KEYS = Shard()
QUEUE = KEYS.queue(MODEL, Tier.PAID)
READS = ("lrange", "lindex", "evalsha", "eval", "script")


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    return RedisBatchStore(redis, "w1")


def fill(redis: Redis, count: int, size: int = 600) -> list[bytes]:
    """Queue messages of that size; returns them, the next to be claimed first."""
    messages = [our_message(f"t{i}", b'"%b"' % (b"x" * size)) for i in range(count)]
    redis.lpush(QUEUE, *messages)
    return messages


@contextmanager
def written(redis: Redis) -> Iterator[list[str]]:
    """The commands meanwhile that change something, as MONITOR has them."""
    found: list[str] = []
    with redis.monitor() as monitor:
        yield found
        redis.echo("the end")
        for each in monitor.listen():
            command: str = each["command"]
            if "the end" in command:
                return
            if not command.lower().startswith(READS):
                found.append(command)


def verbs(commands: list[str]) -> set[str]:
    return {each.split(" ", 1)[0].lower() for each in commands}


def messages_of(claim: Any) -> list[bytes]:
    return [each.message for each in claim.entries]


def test_a_whole_queue_becomes_the_lease(store: RedisBatchStore, redis: Redis) -> None:
    messages = fill(redis, 20)
    with written(redis) as commands:
        claim = store.claim(MODEL, "b1", 64)
    assert messages_of(claim) == messages
    assert "rename" in verbs(commands)
    assert not any("xxxx" in each for each in commands)


def test_the_head_of_a_queue_is_copied(store: RedisBatchStore, redis: Redis) -> None:
    messages = fill(redis, 100)
    with written(redis) as commands:
        claim = store.claim(MODEL, "b1", 64)
    assert messages_of(claim) == messages[:64]
    assert {"copy", "ltrim"} <= verbs(commands)
    assert not any("xxxx" in each for each in commands)
    assert redis.llen(QUEUE) == 36
    assert redis.llen(KEYS.lease("b1")) == 65
    assert messages_of(store.claim(MODEL, "b1", 64)) == messages[:64]
    assert store.give_back(MODEL, "b1", Blame.NOTHING) == 64
    assert redis.lrange(QUEUE, 0, -1) == messages[::-1]


@pytest.mark.parametrize(("waiting", "size"), [(1000, 16), (40, 2)], ids=["a long queue", "a small batch"])
def test_a_queue_much_longer_than_the_batch_is_not_copied(
    store: RedisBatchStore, redis: Redis, waiting: int, size: int
) -> None:
    messages = fill(redis, waiting)
    with written(redis) as commands:
        claim = store.claim(MODEL, "b1", size)
    assert messages_of(claim) == messages[:size]
    assert "copy" not in verbs(commands)
    assert redis.lrange(QUEUE, 0, -1) == messages[: size - 1 : -1]
    assert redis.lrange(KEYS.lease("b1"), 1, -1) == messages[size - 1 :: -1]


def test_large_messages_behind_the_batch_are_not_copied(store: RedisBatchStore, redis: Redis) -> None:
    messages = fill(redis, 16)
    redis.lpush(QUEUE, our_message("large", b'"%b"' % (b"x" * 500_000)))
    with written(redis) as commands:
        claim = store.claim(MODEL, "b1", 16)
    assert messages_of(claim) == messages
    assert "copy" not in verbs(commands)


def test_a_server_that_forbids_memory_usage_is_claimed_from_all_the_same(redis: Redis) -> None:
    redis.acl_setuser("narrow", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-memory"])
    try:
        options = redis.connection_pool.connection_kwargs | {"username": "narrow", "password": "any"}
        narrow = Redis(
            connection_pool=type(redis.connection_pool)(
                connection_class=redis.connection_pool.connection_class, **options
            )
        )
        messages = fill(redis, 100)
        assert messages_of(RedisBatchStore(narrow, "w1").claim(MODEL, "b1", 64)) == messages[:64]
        assert redis.llen(QUEUE) == 36
        narrow.close()
    finally:
        redis.acl_deluser("narrow")


def patient(redis: Redis) -> Door:
    """A door whose requests may wait for long: those whose time is over are claimed beyond the size of a batch."""
    return Door(redis, queue_timeout_ms=60_000)


def test_what_is_read_for_fairness_and_not_taken_is_not_written_again(redis: Redis) -> None:
    door = patient(redis)
    one, other = Quota.of("one", 60_000, 1000), Quota.of("other", 60_000, 1000)
    first = [door.request(Tier.PAID, one) for _ in range(60)]
    late = [door.request(Tier.PAID, other) for _ in range(2)]
    door.flush([*first, *late])
    with written(redis) as commands:
        claim = RedisBatchStore(redis, "w1", ageing_s=3600).claim(MODEL, "b1", 8)
    assert [ids_of(each.message) for each in claim.entries] == [each.task_id for each in (*first[:6], *late)]
    assert sum(each.count("bunch_sent") for each in commands) == 8
    queued = [ids_of(each) for each in redis.lrange(QUEUE, 0, -1)]
    assert queued == [each.task_id for each in first[:5:-1]]
    door.close()


def ids_of(message: bytes) -> str:
    header = read_fast_header(message)
    assert header is not None
    return header.task_id


def test_a_batch_of_very_many_keys_is_counted_off(redis: Redis) -> None:
    door = patient(redis)
    outs = [door.request(Tier.PAID, Quota.of(f"key {n}", 60_000, 1000)) for n in range(2500)]
    for start in range(0, 2500, 500):
        door.flush(outs[start : start + 500])
    assert redis.hlen(KEYS.held(QUEUE)) == 2500
    assert len(RedisBatchStore(redis, "w1").claim(MODEL, "b1", 2400).entries) == 2400
    assert redis.hlen(KEYS.held(QUEUE)) == 100
    door.close()


def test_a_fair_batch_at_the_head_is_not_taken_apart(redis: Redis) -> None:
    door = patient(redis)
    one, other = Quota.of("one", 60_000, 1000), Quota.of("other", 60_000, 1000)
    mixed = [door.request(Tier.PAID, (one, other)[n % 2]) for n in range(40)]
    door.flush(mixed)
    redis.config_resetstat()
    with written(redis) as commands:
        claim = RedisBatchStore(redis, "w1", ageing_s=3600).claim(MODEL, "b1", 20)
    assert len(claim.entries) == 20
    assert not any("bunch_sent" in each for each in commands)
    # 8 and 12 of them: what stands behind is not read, since the counts say that the head is fair.
    assert redis.info("commandstats")["cmdstat_lrange"]["calls"] == 2
    door.close()


def test_a_lease_of_the_form_before_is_given_back_in_order(store: RedisBatchStore, redis: Redis) -> None:
    messages = fill(redis, 4)
    redis.delete(QUEUE)
    lease = KEYS.lease("old-0-1")
    redis.rpush(lease, f"w0\n{MODEL}", b"1-" + messages[0], b"", b"1x" + messages[2], b"1-" + messages[3])
    redis.sadd(KEYS.leases("w1"), "old-0-1")
    found = parse_lease(redis.lrange(lease, 0, -1))
    assert found is not None
    assert (found.worker, found.model, [each.position for each in found.entries]) == ("w0", MODEL, [1, 3, 4])
    assert [each.message for each in found.entries] == [messages[0], *messages[2:]]
    assert store.give_back(MODEL, "old-0-1", Blame.NOTHING) == 3
    assert redis.lrange(QUEUE, 0, -1) == [messages[3], messages[2], messages[0]]


def test_a_server_without_memory_is_claimed_from(store: RedisBatchStore, redis: Redis) -> None:
    messages = fill(redis, 60)
    before = redis.config_get("maxmemory")["maxmemory"]
    redis.config_set("maxmemory", 1)
    try:
        claim = store.claim(MODEL, "b1", 64, max_bytes=sum(map(len, messages[:20])))
    finally:
        redis.config_set("maxmemory", before)
    assert messages_of(claim) == messages[:20]
    assert redis.lrange(QUEUE, 0, -1) == messages[:19:-1]
