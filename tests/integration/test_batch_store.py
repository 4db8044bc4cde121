"""The claim, finish and give-back scripts on a real server, through the port's Redis form."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.client import PubSub

from batching.claim.lease import Verdict
from batching.claim.registry import WorkerRegistry, make_worker_id
from batching.claim.store import Blame, RedisBatchStore, Settled
from batching.fast_header import HEAD, FastHeader, read_fast_header, write_fast_header
from batching.policy import DEFAULT_SHARES, allocate
from batching.script_args import LOOK
from config.keys import Shard
from config.tiers import TIERS, Tier
from tests.integration.queueing import KEYS, MODEL, now_ms, put
from tests.valkey import PrivateValkey


@pytest.fixture
def store(redis: Redis) -> RedisBatchStore:
    # However long a test takes to fill the queues, nothing in them has waited too long.
    return RedisBatchStore(redis, "w1", ageing_s=3600)


def ids(claim) -> list[str]:
    return [read_fast_header(entry.message).task_id for entry in claim.entries]


def heard(redis: Redis, listener: PubSub) -> list[tuple[bytes, list[dict[str, str]]]]:
    """The replies that were published until now, with their channels."""
    redis.publish("bunch:reply:a", b"the end")
    found = itertools.takewhile(lambda each: each["data"] != b"the end", listener.listen())
    return [(each["channel"], msgspec.json.decode(each["data"])) for each in found]


def test_claims_in_order_and_leases_in_the_same_breath(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(5):
        put(redis, f"t{i}")
    claim = store.claim(MODEL, "b1", 3)
    assert ids(claim) == ["t0", "t1", "t2"]
    assert claim.view.depths == (0, 2, 0)
    assert redis.llen(KEYS.lease("b1")) == 4
    assert redis.smembers(KEYS.leases("w1")) == {b"b1"}
    assert msgspec.json.decode(redis.get(KEYS.result("t0")))["status"] == "STARTED"


def test_a_repeated_claim_returns_the_same_batch(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(4):
        put(redis, f"t{i}")
    first = store.claim(MODEL, "b1", 2)
    assert store.claim(MODEL, "b1", 2).entries == first.entries
    assert redis.llen(KEYS.queue(MODEL, Tier.PAID)) == 2


def test_higher_tiers_first_but_the_lower_keep_their_share(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(100):
        for tier in TIERS:
            put(redis, f"{tier.value}{i}", tier)
    claim = store.claim(MODEL, "b1", 20)
    by_tier = [sum(entry.rank == rank for entry in claim.entries) for rank in range(3)]
    assert by_tier == [14, 4, 2]


def test_the_expired_and_cancelled_do_not_take_places(store: RedisBatchStore, redis: Redis) -> None:
    put(redis, "old", limit_in_ms=-1)
    put(redis, "gone")
    put(redis, "good")
    put(redis, "next")
    redis.zadd(KEYS.cancelled(), {"gone": now_ms(redis) + 60_000})
    claim = store.claim(MODEL, "b1", 2)
    verdicts = {read_fast_header(each.message).task_id: each.verdict for each in claim.entries}
    assert verdicts == {
        "old": Verdict.EXPIRED, "gone": Verdict.CANCELLED, "good": Verdict.RUN, "next": Verdict.RUN,
    }  # fmt: skip


def test_finish_stores_and_publishes_once_per_frontend(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(4):
        put(redis, f"t{i}")
    listener = redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("bunch:reply:a", "bunch:reply:b")
    store.claim(MODEL, "b1", 4)
    outcomes = [
        Settled(i + 1, f"t{i}", 60_000, "bunch:reply:a" if i < 3 else "bunch:reply:b", b'{"task_id":"t%d"}' % i)
        for i in range(4)
    ]
    assert store.finish("b1", outcomes, last=True)
    assert sorted(heard(redis, listener)) == [
        (b"bunch:reply:a", [{"task_id": "t0"}, {"task_id": "t1"}, {"task_id": "t2"}]),
        (b"bunch:reply:b", [{"task_id": "t3"}]),
    ]
    assert redis.get(KEYS.result("t2")) == b'{"task_id":"t2"}'
    assert not redis.exists(KEYS.lease("b1"), KEYS.leases("w1"))
    listener.close()


@pytest.mark.parametrize(
    ("listens", "known", "kept_ms"), [(True, False, 10_000), (False, False, 60_000), (True, True, 60_000)]
)
def test_an_answer_that_was_heard_is_not_kept_long(
    store: RedisBatchStore, redis: Redis, *, listens: bool, known: bool, kept_ms: int
) -> None:
    put(redis, "t0")
    listener = redis.pubsub()
    listener.subscribe("bunch:reply:a" if listens else "bunch:reply:b")
    assert listener.get_message(timeout=5)
    store.claim(MODEL, "b1", 1)
    store.finish("b1", [Settled(1, "t0", 60_000, "bunch:reply:a", b"{}", announce=known)], last=True)
    assert kept_ms - 5000 < redis.pttl(KEYS.result("t0")) <= kept_ms
    listener.close()


def test_results_are_stored_also_by_a_server_without_msetex() -> None:
    """It came with Valkey 9.1 and Redis 8.4."""
    server = PrivateValkey("--rename-command", "MSETEX", "")
    server.start()
    try:
        with server.client() as redis:
            store = RedisBatchStore(redis, "w1")
            for i in range(3):
                put(redis, f"t{i}")
            store.claim(MODEL, "b1", 3)
            assert store.finish("b1", [Settled(i + 1, f"t{i}", 60_000, "", b"%d" % i) for i in range(3)], last=True)
            assert redis.mget([KEYS.result(f"t{i}") for i in range(3)]) == [b"0", b"1", b"2"]
            assert all(50_000 < redis.pttl(KEYS.result(f"t{i}")) <= 60_000 for i in range(3))
    finally:
        server.stop()


@pytest.mark.parametrize("count", [1, 1001])
def test_results_of_different_times_to_live(store: RedisBatchStore, redis: Redis, count: int) -> None:
    for i in range(2 * count):
        put(redis, f"t{i}")
    store.claim(MODEL, "b1", 2 * count)
    outcomes = [Settled(i + 1, f"t{i}", 60_000 if i % 2 else 20_000, "", b"%d" % i) for i in range(2 * count)]
    assert store.finish("b1", outcomes, last=True)
    for i in (0, 1, 2 * count - 2, 2 * count - 1):
        assert redis.get(KEYS.result(f"t{i}")) == b"%d" % i
        most = 60_000 if i % 2 else 20_000
        assert most - 10_000 < redis.pttl(KEYS.result(f"t{i}")) <= most


def test_a_large_reply_is_sent_by_reference(store: RedisBatchStore, redis: Redis) -> None:
    put(redis, "big")
    listener = redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("bunch:reply:a")
    store.claim(MODEL, "b1", 1)
    store.finish("b1", [Settled(1, "big", 60_000, "bunch:reply:a", b'"' + b"x" * 70_000 + b'"')], last=True)
    assert heard(redis, listener) == [(b"bunch:reply:a", [{"task_id": "big", "status": "STORED"}])]
    listener.close()


def test_outcomes_of_a_lost_lease_are_dropped(store: RedisBatchStore, redis: Redis) -> None:
    put(redis, "t0")
    store.claim(MODEL, "b1", 1)
    assert store.give_back(MODEL, "b1", blame=Blame.ATTEMPT) == 1
    assert not store.finish("b1", [Settled(1, "t0", 60_000, "", b"late")], last=True)
    assert redis.get(KEYS.result("t0")) != b"late"


def test_given_back_to_the_head_in_the_old_order_with_attempts_counted(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(6):
        put(redis, f"t{i}", (Tier.PAID, Tier.FREE)[i % 2])
    claim = store.claim(MODEL, "b1", 4)
    assert len(claim.entries) == 4
    assert store.give_back(MODEL, "b1", blame=Blame.ATTEMPT) == 4
    again = store.claim(MODEL, "b2", 6)
    assert ids(again) == ["t0", "t2", "t4", "t1", "t3", "t5"]
    stamps = [read_fast_header(entry.message) for entry in again.entries]
    first = {s.task_id: s for s in stamps}
    returned = set(ids(claim))
    assert {s.task_id for s in stamps if s.attempt == 1} == returned
    # Having waited its turn once, it is held to its deadline alone.
    assert all((first[i].limit_ms == first[i].deadline_ms) == (i in returned) for i in first)


def test_foreign_messages_count_attempts_without_being_reencoded(store: RedisBatchStore, redis: Redis) -> None:
    message = b'{"body": "W10=", "headers": {"lang": "py", "empty": []}, "properties": {}}'
    redis.lpush(KEYS.queue(MODEL, Tier.FREE), message)
    for attempt in (1, 2, 3):
        store.claim(MODEL, f"b{attempt}", 1)
        store.give_back(MODEL, f"b{attempt}", blame=Blame.ATTEMPT)
        stored = redis.lindex(KEYS.queue(MODEL, Tier.FREE), 0)
        assert msgspec.json.decode(stored)["headers"] == {"bunch_attempt": attempt, "lang": "py", "empty": []}
    store.claim(MODEL, "b9", 1)
    store.give_back(MODEL, "b9", blame=Blame.NOTHING)
    assert redis.lindex(KEYS.queue(MODEL, Tier.FREE), 0) == stored


def test_leases_of_a_silent_worker_come_back(redis: Redis) -> None:
    dead = RedisBatchStore(redis, "dead")
    registry = WorkerRegistry(redis, lease_ttl_s=5.0)
    for i in range(3):
        put(redis, f"t{i}")
    dead.claim(MODEL, "b1", 2)
    assert registry.beat("alive", b"{}") == []
    redis.zadd(KEYS.workers(), {"dead": now_ms(redis) - 5_100})
    assert registry.beat("alive", b"{}") == ["dead"]
    assert registry.reclaim("dead") == 2
    assert redis.llen(KEYS.queue(MODEL, Tier.PAID)) == 3
    assert redis.zrange(KEYS.workers(), 0, -1) == [b"alive"]


def test_after_an_outage_of_its_own_a_worker_accuses_nobody_at_once(redis: Redis) -> None:
    now = 100.0
    registry = WorkerRegistry(redis, lease_ttl_s=5.0, clock=lambda: now)
    registry.beat("me", b"{}")
    silent_since = now_ms(redis) - 6_000
    redis.zadd(KEYS.workers(), {"me": silent_since, "other": silent_since})
    assert registry.beat("me", b"{}") == []
    now += 4.9
    assert registry.beat("me", b"{}") == []
    now += 0.2
    assert registry.beat("me", b"{}") == ["other"]


def test_leases_of_a_process_that_was_seen_to_die_come_back_at_once(redis: Redis) -> None:
    dead, other = make_worker_id(4711), make_worker_id(47110)
    registry = WorkerRegistry(redis, lease_ttl_s=3600.0)
    for worker in (dead, other):
        registry.beat(worker, b"{}")
        put(redis, worker)
        RedisBatchStore(redis, worker).claim(MODEL, f"batch of {worker}", 1)

    assert registry.bury(4711) == 1

    (message,) = redis.lrange(KEYS.queue(MODEL, Tier.PAID), 0, -1)
    stamp = read_fast_header(message)
    assert (stamp.task_id, stamp.attempt, stamp.lost) == (dead, 1, 0)
    assert redis.zrange(KEYS.workers(), 0, -1) == [other.encode()]
    assert registry.bury(4711) == 0


def test_a_worker_with_a_lease_is_never_forgotten(redis: Redis) -> None:
    store = RedisBatchStore(redis, "w1")
    put(redis, "t0")
    store.claim(MODEL, "b1", 1)
    WorkerRegistry(redis, 5.0).deregister("w1")
    assert redis.zrange(KEYS.workers(), 0, -1) == [b"w1"]


@pytest.mark.parametrize("seed", range(5))
def test_the_script_shares_places_as_the_pure_rule_does(redis: Redis, seed: int) -> None:
    rng = random.Random(seed)
    store = RedisBatchStore(redis, "w1", ageing_s=3600)
    credits: tuple[float, ...] = (0.0, 0.0, 0.0)
    depths = [0, 0, 0]
    for batch in range(60):
        size = rng.choice((1, 2, 7, 16, 64))
        for rank, tier in enumerate(TIERS):
            for _ in range(rng.choice((0, 0, 3, 40))):
                put(redis, f"{batch}-{rank}-{rng.random()}", tier)
                depths[rank] += 1
        expected = allocate(depths, size, credits, DEFAULT_SHARES)
        claim = store.claim(MODEL, f"b{batch}", size)
        takes = tuple(sum(entry.rank == rank for entry in claim.entries) for rank in range(3))
        assert takes == expected.takes
        credits = expected.credits
        depths = [depth - take for depth, take in zip(depths, takes, strict=True)]
        assert claim.view.depths == tuple(depths)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    numbers=st.tuples(
        *[st.integers(0, 10**13 - 1)] * 3,
        st.integers(0, 99),
        st.integers(0, 9),
        st.booleans(),
        st.integers(0, 10**9 - 1),
    ),
    task_id=st.uuids().map(str),
    key=st.integers(0, 2**32 - 1).map("{:08x}".format),
)
def test_the_stamp_is_laid_out_alike_in_lua_and_python(
    redis: Redis, numbers: tuple[int, ...], task_id: str, key: str
) -> None:
    stamp = FastHeader(*numbers, task_id, key)
    message = write_fast_header(stamp) + b'","x":1}'
    assert read_fast_header(message) == stamp
    assert message.startswith(HEAD)
    read = redis.eval(
        "".join(part.read_text(encoding="utf-8") for part in LOOK.files[:-1])
        + "local m = ARGV[1] return {field(m, DEADLINE, 13), field(m, LIMIT, 13), field(m, ENQUEUED, 13), "
        "field(m, ATTEMPT, 2), losses(m), tracked(m) and 1 or 0, field(m, TTL, 9), task_id(m), key_of(m)}",
        1,
        "bunch:any",
        message,
    )
    assert read == [*numbers, task_id.encode(), key.encode()]


def test_every_script_stays_in_one_slot_when_sharded(redis: Redis) -> None:
    keys = Shard("{s3}")
    names = [
        keys.queue("m", Tier.FREE), keys.bell("m"), keys.lease("b"), keys.leases("w"), keys.workers(), keys.worker("w"),
        keys.share("m"), keys.held(keys.queue("m", Tier.FREE)), keys.pace("m"), keys.capacity("m"), keys.quota("k"),
        keys.cancelled(), keys.result("id"), keys.request("r"),
    ]  # fmt: skip
    assert {name[name.index("{") :] for name in names} == {"{s3}"}


def run_ids(claim) -> list[str]:
    return [read_fast_header(entry.message).task_id for entry in claim.entries if entry.verdict is Verdict.RUN]


def test_suspects_are_claimed_among_themselves_in_shrinking_batches(store: RedisBatchStore, redis: Redis) -> None:
    for i in range(64):
        put(redis, f"t{i}")
    store.claim(MODEL, "b0", 64)
    store.give_back(MODEL, "b0", Blame.SUSPECT)
    put(redis, "fresh", Tier.ENTERPRISE)
    first = store.claim(MODEL, "b1", 64, 3)
    assert run_ids(first) == [f"t{i}" for i in range(8)]
    store.give_back(MODEL, "b1", Blame.SUSPECT)
    alone = [run_ids(store.claim(MODEL, f"a{i}", 64, 3)) for i in range(8)]
    assert alone == [[f"t{i}"] for i in range(8)]
    rest = [run_ids(store.claim(MODEL, f"r{i}", 64, 3)) for i in range(7)]
    assert [each for batch in rest for each in batch] == [f"t{i}" for i in range(8, 64)]
    assert run_ids(store.claim(MODEL, "last", 64, 3)) == ["fresh"]


def test_a_suspect_behind_others_waits_for_a_batch_of_its_own(store: RedisBatchStore, redis: Redis) -> None:
    put(redis, "suspect")
    store.claim(MODEL, "b0", 1)
    store.give_back(MODEL, "b0", Blame.SUSPECT)
    head = redis.rpop(KEYS.queue(MODEL, Tier.PAID))
    for task_id in ("a", "b"):
        put(redis, task_id)
    redis.lpush(KEYS.queue(MODEL, Tier.PAID), head)
    put(redis, "c")
    assert [run_ids(store.claim(MODEL, f"b{i}", 64, 3)) for i in range(1, 4)] == [["a", "b"], ["suspect"], ["c"]]


def test_a_retry_waits_for_its_pause_and_then_stands_at_the_head(store: RedisBatchStore, redis: Redis) -> None:
    for task_id in ("a", "b"):
        put(redis, task_id)
    store.claim(MODEL, "b1", 2)
    assert store.put_aside(MODEL, "b1", [(1, 60_000)], last=False)
    assert store.finish("b1", [Settled(2, "b", 1000, "", b"{}")], last=True)
    put(redis, "c")
    assert run_ids(store.claim(MODEL, "b2", 1)) == ["c"]
    redis.zadd(KEYS.delayed(MODEL), {redis.zrange(KEYS.delayed(MODEL), 0, -1)[0]: now_ms(redis) - 1})
    put(redis, "d")
    claim = store.claim(MODEL, "b3", 2)
    assert run_ids(claim) == ["a", "d"]
    assert [read_fast_header(entry.message).attempt for entry in claim.entries] == [1, 0]
    assert read_fast_header(claim.entries[0].message).lost == 0


def test_a_repeated_retry_does_nothing(store: RedisBatchStore, redis: Redis) -> None:
    for task_id in ("a", "b"):
        put(redis, task_id)
    store.claim(MODEL, "b1", 2)
    for _ in range(2):
        assert store.put_aside(MODEL, "b1", [(1, 60_000)], last=False)
    assert redis.zcard(KEYS.delayed(MODEL)) == 1
