"""The submit script lets requests in and refuses them, on a real server."""

from __future__ import annotations

import random
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import msgspec
import pytest
from redis import Redis

from batching.claim.lease import Entry
from batching.claim.registry import ModelThroughput, WorkerRegistry
from batching.claim.store import Claim, RedisBatchStore
from batching.fast_header import NO_KEY, read_fast_header
from config.keys import Shard
from config.tiers import Tier
from tasks.errors import RateLimited, ServiceOverloaded
from tasks.protocol.quota import Quota
from tasks.script_args import SUBMIT
from tests.fakes.door import MODEL, Door, beat, reasons
from tests.valkey import PrivateValkey

KEYS = Shard()
HUNDRED_A_SECOND = ModelThroughput(2, 50.0, 0.1, 0.2)


@pytest.fixture
def door(redis: Redis) -> Iterator[Door]:
    door = Door(redis)
    yield door
    door.close()


@pytest.fixture
def patient(redis: Redis) -> Iterator[Door]:
    """A door whose requests may wait for longer than a machine stands still: those in time are claimed otherwise."""
    door = Door(redis, queue_timeout_ms=60_000)
    yield door
    door.close()


def all_keys(redis: Redis) -> set[bytes]:
    # Apart from what the door itself remembers for a moment.
    return {key for key in redis.keys("*") if not key.startswith((b"bunch:flush:", b"bunch:capacity:"))}


def test_without_a_measured_rate_only_the_hard_limit_counts(redis: Redis) -> None:
    door = Door(redis, max_queue_depth=300)
    beat(redis, ModelThroughput(2))
    assert Counter(reasons(door.send(Tier.FREE, 400))) == {"": 300, "queue_full": 100}
    assert door.depths() == [0, 0, 300]
    door.close()


def test_each_tier_is_refused_at_its_own_threshold(redis: Redis, door: Door) -> None:
    beat(redis, HUNDRED_A_SECOND)
    # Half a second at 70 a second, and one more that made it so.
    assert reasons(door.send(Tier.FREE, 40)) == [""] * 36 + ["pressure"] * 4
    assert reasons(door.send(Tier.PAID, 80)) == [""] * 70 + ["pressure"] * 10
    assert reasons(door.send(Tier.ENTERPRISE, 40)) == [""] * 40
    assert door.depths() == [40, 70, 36]


def test_the_absolute_form(redis: Redis) -> None:
    door = Door(redis, admission="depth")
    assert reasons(door.send(Tier.FREE, 103)) == [""] * 101 + ["pressure"] * 2
    assert reasons(door.send(Tier.PAID, 402)) == [""] * 400 + ["pressure"] * 2
    assert reasons(door.send(Tier.ENTERPRISE, 50)) == [""] * 50
    door.close()


def test_switched_off(redis: Redis) -> None:
    door = Door(redis, admission="off", max_queue_depth=500)
    beat(redis, HUNDRED_A_SECOND)
    assert Counter(reasons(door.send(Tier.FREE, 512))) == {"": 500, "queue_full": 12}
    door.close()


def test_a_refusal_leaves_no_trace(redis: Redis, door: Door) -> None:
    beat(redis, HUNDRED_A_SECOND)
    quota = Quota.of("k", 60_000, 1000)
    door.send(Tier.PAID, 200)
    before, counted = all_keys(redis), redis.hgetall(KEYS.arrivals(redis.time()[0]))
    answers = door.send(Tier.FREE, 50, quota=quota)
    assert set(reasons(answers)) == {"pressure"}
    assert all_keys(redis) == before
    assert redis.hgetall(KEYS.arrivals(redis.time()[0])) in (counted, {})
    assert door.depths()[2] == 0


def test_a_refusal_says_when_to_come_again_and_what_is_left(redis: Redis, door: Door) -> None:
    beat(redis, HUNDRED_A_SECOND)
    door.send(Tier.PAID, 106)
    (answer,) = door.send(Tier.FREE, quota=Quota.of("k", 600, 20))
    assert isinstance(answer, ServiceOverloaded)
    assert (answer.code, answer.reason) == ("SERVICE_OVERLOADED", "pressure")
    # Of those 106 not more than 35 may wait: the eighth batch of ten takes the last too many.
    assert answer.retry_after_s == pytest.approx(0.75, abs=0.01)
    assert answer.limits == (600, 20, 20, 0.0)


def test_losing_half_the_fleet_shows_within_two_seconds(redis: Redis, door: Door) -> None:
    pace = ModelThroughput(1, 50.0, 0.1, 0.2)
    for worker in ("w1", "w2"):
        WorkerRegistry(redis, 5.0).beat(worker, b"{}", {MODEL: pace})
    assert Counter(reasons(door.send(Tier.FREE, 30))) == {"": 30}
    lost_at = time.monotonic()
    # A frontend asks, so what it knows is kept, and one worker falls silent.
    while not any(door.send(Tier.FREE)):
        WorkerRegistry(redis, 5.0).beat("w1", b"{}", {MODEL: pace})
        redis.rpop(KEYS.queue(MODEL, Tier.FREE))
        time.sleep(0.05)
        assert time.monotonic() - lost_at < 60
    assert struct.unpack_from("<2d", redis.get(KEYS.capacity(MODEL)))[1] == 50.0
    # How long a silent worker is believed, and what is kept: not how fast this machine is.
    part = SUBMIT.text
    kept_ms, fresh_ms = (int(re.search(rf"local {name} = (\d+)", part)[1]) for name in ("KEEP_MS", "FRESH_MS"))
    assert kept_ms + fresh_ms <= 2000


def test_an_executor_of_unknown_pace_counts_as_the_others_do(redis: Redis, door: Door) -> None:
    beat(redis, ModelThroughput(1, 50.0, 0.1, 0.2), "w1")
    beat(redis, ModelThroughput(3), "w2")
    door.send()
    _, rate, first_ms, full_ms, full = struct.unpack_from("<5d", redis.get(KEYS.capacity(MODEL)))
    assert (rate, first_ms, full_ms, full) == pytest.approx((200.0, 100.0, 200.0, 10.0))


def test_what_cannot_be_answered_in_time_is_refused(redis: Redis, door: Door) -> None:
    beat(redis, HUNDRED_A_SECOND)
    door.send(Tier.PAID, 60)
    assert reasons(door.send(Tier.PAID, timeout_ms=500)) == ["deadline"]
    assert reasons(door.send(Tier.PAID, timeout_ms=900)) == [""]
    assert reasons(door.send(Tier.ENTERPRISE, timeout_ms=500)) == [""]


def test_a_full_redis_lets_nobody_in(valkey: PrivateValkey, redis: Redis, door: Door) -> None:
    # The script takes memory too, of a server that does not know it yet.
    assert reasons(door.send()) == [""]
    redis.delete(KEYS.capacity(MODEL))
    used = redis.info("memory")["used_memory"]
    try:
        redis.config_set("maxmemory", int(used / 0.7))
        assert reasons(door.send()) == [""]
        redis.config_set("maxmemory", int(used / 0.95))
        redis.delete(KEYS.capacity(MODEL))
        (answer,) = door.send(Tier.ENTERPRISE)
    finally:
        redis.config_set("maxmemory", 0)
    assert isinstance(answer, RateLimited)
    assert (answer.code, answer.reason) == ("RATE_LIMITED", "memory")


def test_one_key_cannot_fill_the_room_of_its_tier(redis: Redis, door: Door) -> None:
    beat(redis, HUNDRED_A_SECOND)
    hog, other = Quota.of("hog", 600_000, 1000), Quota.of("other", 600_000, 1000)
    answers = door.send(Tier.FREE, 100, quota=hog)
    assert Counter(reasons(answers)) == {"": 18, "share": 82}
    assert isinstance(answers[-1], RateLimited)
    assert reasons(door.send(Tier.FREE, 5, quota=other)) == [""] * 5
    assert door.held(Tier.FREE) == {hog.tag: 18, other.tag: 5}


def test_what_is_claimed_is_no_longer_held(redis: Redis, patient: Door) -> None:
    door = patient
    keys = [Quota.of(name, 600_000, 1000) for name in ("a", "b", "c")]
    for number, quota in enumerate(keys, 1):
        door.send(Tier.FREE, 10 * number, quota=quota)
    store = RedisBatchStore(redis, "w1")
    claim = store.claim(MODEL, "b1", 12)
    got = Counter(stamp.key for entry in claim.entries if (stamp := read_fast_header(entry.message)))
    assert got == {quota.tag: 4 for quota in keys}
    assert door.held(Tier.FREE) == {quota.tag: 10 * number - 4 for number, quota in enumerate(keys, 1)}
    for number in range(20):
        store.claim(MODEL, f"c{number}", 12)
    assert door.held(Tier.FREE) == {}


def test_counts_left_over_from_a_purge_are_forgotten(redis: Redis, door: Door) -> None:
    quota = Quota.of("k", 600_000, 1000)
    door.send(Tier.FREE, 30, quota=quota)
    redis.delete(KEYS.queue(MODEL, Tier.FREE))
    door.send(Tier.FREE, 2, quota=quota)
    assert door.held(Tier.FREE) == {quota.tag: 2}


def test_a_quota_is_one_for_all_tiers_and_flushes_and_is_whole_again_later(redis: Redis, door: Door) -> None:
    # One in a minute, so that none comes back between two flushes.
    quota = Quota.of("k", 1, 10)
    batch = [door.request(tier, quota) for tier in (Tier.PAID, Tier.FREE) for _ in range(6)]
    assert Counter(reasons(door.flush(batch))) == {"": 10, "rate": 2}
    (answer,) = door.send(quota=quota)
    assert isinstance(answer, RateLimited)
    assert 0 < answer.retry_after_s <= 60
    assert answer.limits is not None
    assert answer.limits[:3] == (1, 10, 0)
    assert 540 < answer.limits[3] <= 600
    assert not redis.exists(KEYS.quota("other"))
    assert 540_000 < redis.pttl(KEYS.quota("k")) <= 600_001


def test_a_quota_that_is_spent_lets_in_again(redis: Redis, door: Door) -> None:
    quota = Quota.of("k", 600, 10)
    # A hundred at once: each tenth of a second brings one more.
    assert "rate" in reasons(door.send(quota=quota, count=100))
    until = time.monotonic() + 30
    while any(door.send(quota=quota)):
        assert time.monotonic() < until


def test_each_of_a_mixed_flush_has_its_own_queue_deadline_and_key(redis: Redis, door: Door) -> None:
    """Neighbours that have these in common are sent as one run."""
    rng = random.Random(7)
    quotas = [None, Quota.of("a", 6000, 600), Quota.of("b", 6000, 600)]
    kinds = [(tier, quota, timeout_ms) for tier in Tier for quota in quotas for timeout_ms in (5_000, 7_000)]
    batch = [door.request(*each) for kind in rng.choices(kinds, k=60) for each in [kind] * rng.randint(1, 3)]
    assert door.flush(batch) == [None] * len(batch)
    sent = {out.task_id: out for out in batch}
    for tier in Tier:
        messages = redis.lrange(KEYS.queue(MODEL, tier), 0, -1)
        stamps = [stamp for each in reversed(messages) if (stamp := read_fast_header(each))]
        assert [each.task_id for each in stamps] == [
            out.task_id for out in batch if out.queue == KEYS.queue(MODEL, tier)
        ]
        for stamp in stamps:
            out = sent[stamp.task_id]
            assert stamp.deadline_ms - stamp.enqueued_ms == out.deadline_ms
            assert stamp.limit_ms - stamp.enqueued_ms == out.queue_limit_ms
            assert stamp.key == (out.quota.tag if out.quota else NO_KEY)


def test_a_flush_sent_again_is_not_counted_again(redis: Redis, door: Door) -> None:
    quota = Quota.of("k", 60, 5)
    batch = [door.request(Tier.PAID, quota) for _ in range(7)]
    first = reasons(door.flush(batch))
    door._outbox.flushes -= 1
    assert reasons(door.flush(batch)) == first
    assert door.depths() == [0, 5, 0]


@pytest.mark.parametrize("tier", [Tier.PAID, Tier.FREE])
def test_the_time_to_come_again_is_about_the_truth(redis: Redis, tier: Tier) -> None:
    """In a time of its own: a fleet of 100 a second, and requests of the highest tier that come meanwhile."""
    door = Door(redis, shed_free_ms=2000, shed_paid_ms=2000, queue_timeout_ms=10_000)
    beat(redis, HUNDRED_A_SECOND)
    enterprise_per_s = 20
    door.send(Tier.ENTERPRISE, 240)

    def as_ever() -> None:
        """As much as came in each of the last seconds is expected of the next ones."""
        redis.delete(KEYS.capacity(MODEL), *(KEYS.arrivals(redis.time()[0] - ago) for ago in range(5)))
        for ago in range(5):
            redis.hset(KEYS.arrivals(redis.time()[0] - ago), KEYS.queue(MODEL, Tier.ENTERPRISE), enterprise_per_s)

    as_ever()
    (refused,) = door.send(tier)
    assert refused is not None
    assert refused.reason == "pressure"
    assert refused.retry_after_s
    store = RedisBatchStore(redis, "w1", ageing_s=0.5)
    steps = 0
    # Ten batches of ten in a second.
    while any(door.send(tier)):
        if steps % 5 == 0:
            door.send(Tier.ENTERPRISE, enterprise_per_s // 2)
        store.claim(MODEL, f"b{steps}", 10)
        beat(redis, HUNDRED_A_SECOND)
        as_ever()
        steps += 1
    assert steps / 10 / 2 <= refused.retry_after_s <= steps / 10 * 2
    door.close()


def test_only_where_somebody_else_waits_more_are_read_than_are_wanted(redis: Redis, patient: Door) -> None:
    door = patient

    def reads() -> int:
        """The number of times that the claim of a batch of eight read from a queue; it reads eight at once."""
        redis.config_resetstat()
        claimed.append(store.claim(MODEL, f"b{len(claimed)}", 8))
        commands = cast("dict[str, dict[str, int]]", redis.info("commandstats"))
        return commands["cmdstat_lrange"]["calls"]

    store = RedisBatchStore(redis, "w1", ageing_s=3600)
    claimed: list[Claim] = []
    one, other = Quota.of("one", 60_000, 1000), Quota.of("other", 60_000, 1000)
    first = [door.request(Tier.PAID, one) for _ in range(60)]
    door.flush(first)
    assert reads() == 1
    assert [stamp_of(each) for each in claimed[0].entries] == [each.task_id for each in first[:8]]
    late = door.request(Tier.PAID, other)
    door.flush([late])
    assert reads() > 1
    assert [stamp_of(each) for each in claimed[1].entries] == [each.task_id for each in (*first[8:15], late)]


def stamp_of(entry: Entry) -> str:
    stamp = read_fast_header(entry.message)
    assert stamp is not None
    return stamp.task_id


def test_a_flush_of_requests_with_names_of_their_own_and_without(redis: Redis, door: Door) -> None:
    outs = [door.request(Tier.PAID) for _ in range(7)]
    for n in (1, 2, 5):
        outs[n] = msgspec.structs.replace(outs[n], request_key=f"name-{n}", tracked=True)
    assert reasons(door.flush(outs)) == [""] * 7
    entries = RedisBatchStore(redis, "w1").claim(MODEL, "b", 10).entries
    assert [stamp_of(each) for each in entries] == [each.task_id for each in outs]
    names = {n: cast("bytes | None", redis.get(f"name-{n}")) for n in range(7)}
    assert names == {n: outs[n].task_id.encode() if n in {1, 2, 5} else None for n in range(7)}
