"""What every batch store does, the real one and its twin; and that the two do the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import msgspec
import pytest
from redis import Redis

from batching.stamp import Stamp, read_stamp, write_stamp
from batching.store import BatchStore, Blame, Claim, RedisBatchStore, Settled, Verdict
from config.keys import Shard
from config.tiers import TIERS, Tier
from tests.fakes.store import Letter, MemoryBatchStore, epoch_ms, state_of

KEYS = Shard()
MODEL = "m"
HOUR_MS = 3_600_000


class World(Protocol):
    """A store, and the hands and eyes of a test beside it."""

    store: BatchStore

    def put(self, message: bytes, tier: Tier) -> None: ...
    def queued(self, tier: Tier) -> list[bytes]:
        """Head first."""

    def set_state(self, task_id: str, status: str) -> None: ...
    def results(self, task_ids: list[str]) -> list[bytes | None]: ...
    def cancel(self, task_id: str) -> None: ...
    def leased(self, batch_id: str) -> bool: ...
    def letters(self) -> dict[str, Letter]: ...
    def end_pauses(self) -> None: ...
    def replies(self) -> list[tuple[str, list[object]]]:
        """Channel and content of each publish since the last call."""


class MemoryWorld:
    def __init__(self) -> None:
        self.store = MemoryBatchStore()

    def put(self, message: bytes, tier: Tier) -> None:
        self.store.put(MODEL, tier, message)

    def queued(self, tier: Tier) -> list[bytes]:
        return self.store.queued(MODEL, tier)

    def set_state(self, task_id: str, status: str) -> None:
        self.store.results[KEYS.result(task_id)] = state_of(task_id, status)

    def results(self, task_ids: list[str]) -> list[bytes | None]:
        return [self.store.results.get(KEYS.result(each)) for each in task_ids]

    def cancel(self, task_id: str) -> None:
        self.store.cancelled.add(task_id)

    def leased(self, batch_id: str) -> bool:
        return batch_id in self.store.leases

    def letters(self) -> dict[str, Letter]:
        return dict(self.store.letters)

    def end_pauses(self) -> None:
        self.store.end_pauses(MODEL)

    def replies(self) -> list[tuple[str, list[object]]]:
        got = [(channel, [msgspec.json.decode(each) for each in raw]) for channel, raw in self.store.replies]
        self.store.replies.clear()
        return got


class RedisWorld:
    def __init__(self, redis: Redis) -> None:
        self.store = RedisBatchStore(redis, "w1")
        self._redis = redis
        self._listener = redis.pubsub(ignore_subscribe_messages=True)
        self._listener.psubscribe("bunch:reply:*", "the-end")

    def put(self, message: bytes, tier: Tier) -> None:
        self._redis.lpush(KEYS.queue(MODEL, tier), message)
        self._redis.lpush(KEYS.bell(MODEL), 1)
        self._redis.ltrim(KEYS.bell(MODEL), 0, 0)

    def queued(self, tier: Tier) -> list[bytes]:
        return self._redis.lrange(KEYS.queue(MODEL, tier), 0, -1)[::-1]

    def set_state(self, task_id: str, status: str) -> None:
        self._redis.set(KEYS.result(task_id), state_of(task_id, status), px=HOUR_MS)

    def results(self, task_ids: list[str]) -> list[bytes | None]:
        return self._redis.mget([KEYS.result(each) for each in task_ids]) if task_ids else []

    def cancel(self, task_id: str) -> None:
        self._redis.zadd(KEYS.cancelled(), {task_id: 10**13})

    def leased(self, batch_id: str) -> bool:
        in_set = bool(self._redis.sismember(KEYS.leases("w1"), batch_id))
        assert in_set == bool(self._redis.exists(KEYS.lease(batch_id)))
        return in_set

    def letters(self) -> dict[str, Letter]:
        found = {}
        for task_id in self._redis.zrange(KEYS.dead(), 0, -1):
            stored = self._redis.hgetall(KEYS.dead(task_id.decode()))
            found[task_id.decode()] = Letter(int(stored[b"rank"]), stored[b"message"], stored[b"record"])
        return found

    def end_pauses(self) -> None:
        for each in self._redis.zrange(KEYS.delayed(MODEL), 0, -1):
            self._redis.zadd(KEYS.delayed(MODEL), {each: 0})

    def replies(self) -> list[tuple[str, list[object]]]:
        self._redis.publish("the-end", "")
        got: list[tuple[str, list[object]]] = []
        while True:
            message = self._listener.get_message(timeout=10)
            if message and message["channel"] == b"the-end":
                return got
            if message:
                got.append((message["channel"].decode(), msgspec.json.decode(message["data"])))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(params=["memory", "redis"])
def world(request: pytest.FixtureRequest):
    if request.param == "memory":
        yield MemoryWorld()
        return
    made = RedisWorld(request.getfixturevalue("redis"))
    yield made
    made.close()


def ours(
    task_id: str, *, expired: bool = False, tracked: bool = True, lost: int = 0, attempt: int = 0, enqueued: int = 0
) -> bytes:
    now = epoch_ms()
    limit = now - 1000 if expired else now + HOUR_MS
    stamp = Stamp(now + 2 * HOUR_MS, limit, enqueued or now, attempt, lost, tracked, HOUR_MS, task_id)
    return write_stamp(stamp) + b'","lang":"py"},"body":"' + task_id.encode() + b'"}'


def foreign(name: str) -> bytes:
    return b'{"body": "%s", "headers": {"lang": "py", "empty": []}, "properties": {}}' % name.encode()


def names(claim: Claim) -> list[str]:
    return [name_of(each.message) for each in claim.entries]


def name_of(message: bytes) -> str:
    return msgspec.json.decode(message)["body"]


def settled(position: int, task_id: str, reply_to: str = "", *, size: int = 1, letter: bytes = b"") -> Settled:
    result = msgspec.json.encode({"task_id": task_id, "result": "x" * size})
    return Settled(position, task_id, HOUR_MS, reply_to, result, letter)


def test_claims_the_oldest_first_and_leases_them(world: World) -> None:
    for i in range(5):
        world.put(ours(f"t{i}"), Tier.PAID)
    claim = world.store.claim(MODEL, "b1", 3)
    assert names(claim) == ["t0", "t1", "t2"]
    assert [each.position for each in claim.entries] == [1, 2, 3]
    assert claim.view.depths == (0, 2, 0)
    assert world.leased("b1")


def test_a_repeated_claim_is_the_same_claim(world: World) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    assert world.store.claim(MODEL, "b1", 2).entries == world.store.claim(MODEL, "b1", 2).entries
    assert len(world.queued(Tier.PAID)) == 2


def test_nothing_waiting_makes_no_lease(world: World) -> None:
    claim = world.store.claim(MODEL, "b1", 8)
    assert claim.entries == ()
    assert claim.view.depth == 0
    assert not world.leased("b1")


def test_looking_changes_nothing_and_tells_the_age_of_the_oldest(world: World) -> None:
    world.put(ours("a", enqueued=5_000), Tier.FREE)
    world.put(ours("b", enqueued=4_000), Tier.ENTERPRISE)
    world.put(ours("c", enqueued=3_000), Tier.ENTERPRISE)
    world.put(foreign("d"), Tier.PAID)
    for _ in range(2):
        view = world.store.look(MODEL)
        assert (view.depths, view.oldest_ms) == ((2, 1, 1), 4_000)
    assert abs(view.now_ms - epoch_ms()) < 60_000


def test_verdicts(world: World) -> None:
    for message in (ours("late", expired=True), ours("back"), foreign("f"), ours("good")):
        world.put(message, Tier.PAID)
    world.cancel("back")
    claim = world.store.claim(MODEL, "b1", 2)
    assert {name_of(each.message): each.verdict for each in claim.entries} == {
        "late": Verdict.EXPIRED, "back": Verdict.CANCELLED, "f": Verdict.RUN, "good": Verdict.RUN,
    }  # fmt: skip


def test_tracked_requests_are_started_when_claimed_and_pending_when_back(world: World) -> None:
    world.put(ours("seen"), Tier.PAID)
    world.put(ours("unseen", tracked=False), Tier.PAID)
    world.set_state("seen", "PENDING")
    for blame in (Blame.NOTHING, Blame.ATTEMPT):
        world.store.claim(MODEL, f"b{blame}", 2)
        assert world.results(["seen"]) == [state_of("seen", "STARTED")]
        world.store.give_back(MODEL, f"b{blame}", blame)
        assert world.results(["seen"]) == [state_of("seen", "PENDING")]
    assert world.results(["unseen"]) == [None]


def test_finish_stores_and_tells_each_frontend_once(world: World) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 4)
    channels = ["bunch:reply:a", "bunch:reply:b", "bunch:reply:a", ""]
    outcomes = [settled(i + 1, f"t{i}", channel) for i, channel in enumerate(channels)]
    assert world.store.finish("b1", outcomes, last=True)
    told = {channel: [each["task_id"] for each in replies] for channel, replies in world.replies()}
    assert told == {"bunch:reply:a": ["t0", "t2"], "bunch:reply:b": ["t1"]}
    assert world.results([f"t{i}" for i in range(4)]) == [each.result for each in outcomes]
    assert not world.leased("b1")


def test_a_large_result_is_told_by_reference(world: World) -> None:
    world.put(ours("big"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    outcome = settled(1, "big", "bunch:reply:a", size=70_000)
    world.store.finish("b1", [outcome], last=True)
    assert world.replies() == [("bunch:reply:a", [{"task_id": "big", "status": "STORED"}])]
    assert world.results(["big"]) == [outcome.result]


def test_a_result_that_nobody_wants_is_not_stored(world: World) -> None:
    world.put(ours("t0"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    world.store.finish("b1", [Settled(1, "t0", 0, "", b"{}")], last=True)
    assert world.results(["t0"]) == [None]


def test_what_is_finished_early_does_not_come_back(world: World) -> None:
    for i in range(3):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 3)
    assert world.store.finish("b1", [settled(2, "t1")], last=False)
    assert world.store.give_back(MODEL, "b1", Blame.NOTHING) == 2
    assert [name_of(each) for each in world.queued(Tier.PAID)] == ["t0", "t2"]


def test_the_outcomes_of_a_lost_lease_are_dropped(world: World) -> None:
    world.put(ours("t0"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    assert world.store.give_back(MODEL, "b1", Blame.ATTEMPT) == 1
    assert not world.store.finish("b1", [settled(1, "t0", "bunch:reply:a")], last=True)
    assert not world.store.put_aside(MODEL, "b1", [(1, 0)], last=True)
    assert world.store.give_back(MODEL, "b1", Blame.ATTEMPT) == -1
    assert world.results(["t0"]) == [None]
    assert world.replies() == []


def test_an_outcome_is_stored_and_told_once(world: World) -> None:
    """The second call is the repeat of one whose reply was lost."""
    for i in range(2):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        assert world.store.finish("b1", [settled(1, "t0", "bunch:reply:a")], last=False)
    assert len(world.replies()) == 1
    assert world.leased("b1")


@pytest.mark.parametrize(
    ("blame", "attempt", "lost"), [(Blame.NOTHING, 0, 0), (Blame.ATTEMPT, 1, 0), (Blame.SUSPECT, 1, 1)]
)
def test_given_back_to_the_head_in_the_old_order(world: World, blame: Blame, attempt: int, lost: int) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    world.store.give_back(MODEL, "b1", blame)
    back = world.queued(Tier.PAID)
    assert [name_of(each) for each in back] == ["t0", "t1", "t2", "t3"]
    stamps = [read_stamp(each) for each in back]
    assert [(each.attempt, each.lost) for each in stamps] == [(attempt, lost)] * 2 + [(0, 0)] * 2
    # Having waited its turn once, it is held to its deadline alone.
    assert (stamps[0].limit_ms == stamps[0].deadline_ms) == (blame is not Blame.NOTHING)


def test_anybody_elses_message_counts_in_a_header_of_its_own(world: World) -> None:
    world.put(foreign("f"), Tier.FREE)
    for attempt in (1, 2, 3):
        world.store.claim(MODEL, f"b{attempt}", 1)
        world.store.give_back(MODEL, f"b{attempt}", Blame.ATTEMPT)
        (message,) = world.queued(Tier.FREE)
        assert msgspec.json.decode(message)["headers"] == {"bunch_attempt": attempt, "lang": "py", "empty": []}


@pytest.mark.parametrize("space", [b"", b" "])
def test_counts_in_messages_of_any_celery_client(world: World, space: bytes) -> None:
    """Not every language's JSON has a space behind the colon."""
    world.put(b'{"body":"f","headers":%s{"lang":"js"}}' % space, Tier.FREE)
    world.store.claim(MODEL, "b1", 1)
    world.store.give_back(MODEL, "b1", Blame.SUSPECT)
    assert msgspec.json.decode(world.queued(Tier.FREE)[0])["headers"] == {"bunch_attempt": 1, "lang": "js"}


def test_counts_in_messages_without_headers(world: World) -> None:
    """Protocol 1."""
    world.put(b'{"body": "f", "headers": {}, "properties": {}}', Tier.FREE)
    for attempt in (1, 2):
        world.store.claim(MODEL, f"b{attempt}", 1)
        world.store.give_back(MODEL, f"b{attempt}", Blame.ATTEMPT)
        assert msgspec.json.decode(world.queued(Tier.FREE)[0])["headers"] == {"bunch_attempt": attempt}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\xff",
        b'{"headers":{"bunch":"1;',
        b'{"headers":{"bunch":"1;soon","x":1},"body":""}',
        b'{"headers":{"bunch":"1;0000000000000;000000000000x;0000000000000;00;0;0;000060000;id"}}',
        b'{"headers":{"bunch":"1;0000000000000;0000000000000;0000000000000;00;0;0;000060000;"}}',
        b'{"headers": {"bunch_attempt": 1}}',
        b'{"headers": {"bunch_attempt": "many", "x": 1}}',
        b'{"headers": {"bunch_attempt": -1, "x": 1}}',
        b'{"headers": {"bunch_attempt": 99999999999999999999, "x": 1}}',
    ],
)
@pytest.mark.parametrize("blame", list(Blame))
def test_no_message_however_broken_blocks_its_queue(world: World, message: bytes, blame: Blame) -> None:
    world.put(message, Tier.PAID)
    world.put(ours("good"), Tier.PAID)
    assert world.store.look(MODEL).depth == 2
    first = world.store.claim(MODEL, "b1", 2, 2)
    assert world.store.give_back(MODEL, "b1", blame) == len(first.entries)
    seen: list[bytes] = []
    for i in range(2, 5):
        claim = world.store.claim(MODEL, f"b{i}", 2, 2)
        seen += [each.message for each in claim.entries]
        world.store.put_aside(MODEL, f"b{i}", [(each.position, HOUR_MS) for each in claim.entries], last=True)
    assert len(seen) == 2
    assert read_stamp(seen[0]) is None
    assert name_of(seen[1]) == "good"


def test_put_aside_until_its_pause_is_over(world: World) -> None:
    for task_id in ("a", "b"):
        world.put(ours(task_id), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        assert world.store.put_aside(MODEL, "b1", [(1, HOUR_MS)], last=False)
    assert world.store.finish("b1", [settled(2, "b")], last=True)
    assert world.store.look(MODEL).depth == 0
    world.put(ours("c"), Tier.PAID)
    world.end_pauses()
    claim = world.store.claim(MODEL, "b2", 2)
    assert names(claim) == ["a", "c"]
    assert [read_stamp(each.message).attempt for each in claim.entries] == [1, 0]


def test_suspects_run_among_themselves_and_at_last_alone(world: World) -> None:
    for i in range(9):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b0", 9)
    world.store.give_back(MODEL, "b0", Blame.SUSPECT)
    world.put(ours("other"), Tier.ENTERPRISE)
    first = world.store.claim(MODEL, "b1", 9, 3)
    assert names(first) == ["t0", "t1", "t2"]
    world.store.give_back(MODEL, "b1", Blame.SUSPECT)
    assert [names(world.store.claim(MODEL, f"a{i}", 9, 3)) for i in range(3)] == [["t0"], ["t1"], ["t2"]]
    assert names(world.store.claim(MODEL, "r1", 9, 3)) == ["t3", "t4", "t5"]


def test_a_dead_letter_keeps_the_message_as_it_was_queued(world: World) -> None:
    message = ours("t0")
    world.put(message, Tier.FREE)
    world.put(ours("t1"), Tier.FREE)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        # The second time is the repeat of a call whose reply was lost.
        world.store.finish("b1", [settled(1, "t0", letter=b'{"reason":"x"}')], last=False)
    assert world.letters() == {"t0": Letter(Tier.FREE.rank, message, b'{"reason":"x"}')}


def test_the_bell_rings_once_for_what_came_since(world: World) -> None:
    assert not world.store.wait_for_bell(MODEL, 0.001)
    world.put(ours("a"), Tier.PAID)
    world.put(ours("b"), Tier.PAID)
    assert world.store.wait_for_bell(MODEL, 5.0)
    assert not world.store.wait_for_bell(MODEL, 0.001)


def test_giving_back_rings(world: World) -> None:
    world.put(ours("a"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    world.store.wait_for_bell(MODEL, 5.0)
    world.store.give_back(MODEL, "b1", Blame.NOTHING)
    assert world.store.wait_for_bell(MODEL, 5.0)


class Trace:
    """The same random life in several worlds; after each step they must look alike."""

    def __init__(self, rng: random.Random, worlds: Sequence[World]) -> None:
        self._rng = rng
        self._worlds = worlds
        self._batches: dict[str, list[tuple[int, str]]] = {}
        self._count = 0

    def step(self) -> None:
        act = self._rng.choice([self.put, self.put, self.claim, self.claim, self.end, self.cancel])
        before = repr(act.__name__)
        returned = act()
        assert all(each == returned[0] for each in returned), before
        for view in ([world.queued(tier) for tier in TIERS] for world in self._worlds):
            assert view == [self._worlds[0].queued(tier) for tier in TIERS], before
        ids = [f"t{i}" for i in range(self._count)]
        states = [world.results(ids) for world in self._worlds]
        assert all(each == states[0] for each in states), before
        letters = [world.letters() for world in self._worlds]
        assert all(each == letters[0] for each in letters), before

    def put(self) -> list[object]:
        rng = self._rng
        tier = rng.choice(TIERS)
        for _ in range(rng.choice((1, 1, 5, 30))):
            task_id = f"t{self._count}"
            self._count += 1
            message = foreign(task_id) if rng.random() < 0.2 else ours(
                task_id, expired=rng.random() < 0.1, tracked=rng.random() < 0.5, enqueued=1000 + self._count
            )  # fmt: skip
            for world in self._worlds:
                world.put(message, tier)
                world.set_state(task_id, "PENDING")
        return [None for _ in self._worlds]

    def cancel(self) -> list[object]:
        task_id = f"t{self._rng.randrange(self._count + 1)}"
        for world in self._worlds:
            world.cancel(task_id)
            world.end_pauses()
        return [None for _ in self._worlds]

    def claim(self) -> list[object]:
        rng = self._rng
        again = self._batches and rng.random() < 0.2
        batch_id = rng.choice(list(self._batches)) if again else f"b{self._count}-{rng.random()}"
        size = rng.choice((1, 2, 7, 16, 64))
        claims = [world.store.claim(MODEL, batch_id, size, rng_attempts) for rng_attempts, world in zip(
            [rng.choice((1, 3, 4))] * len(self._worlds), self._worlds, strict=True
        )]  # fmt: skip
        if claims[0].entries:
            self._batches[batch_id] = [(each.position, name_of(each.message)) for each in claims[0].entries]
        return [(claim.entries, claim.view.depths, claim.view.oldest_ms) for claim in claims]

    def end(self) -> list[object]:
        if not self._batches:
            return [None for _ in self._worlds]
        rng = self._rng
        batch_id = rng.choice(list(self._batches))
        entries = self._batches[batch_id]
        last = rng.random() < 0.5
        some = [each for each in entries if rng.random() < 0.7]
        repeat = rng.choice((1, 1, 2))
        blame = rng.choice(list(Blame))
        kind = rng.choice(("finish", "put_aside", "give_back"))
        if kind == "give_back" or last:
            del self._batches[batch_id]
        else:
            self._batches[batch_id] = [each for each in entries if each not in some]
        outcomes = [
            settled(position, name, rng.choice(("", "bunch:reply:a", "bunch:reply:b")), letter=rng.choice((b"", b"{}")))
            for position, name in some
        ]
        pauses = [(position, HOUR_MS) for position, _ in some]

        def call(store: BatchStore) -> object:
            if kind == "give_back":
                return store.give_back(MODEL, batch_id, blame)
            if kind == "put_aside":
                return store.put_aside(MODEL, batch_id, pauses, last=last, count_attempt=blame is Blame.ATTEMPT)
            return store.finish(batch_id, outcomes, last=last)

        return [
            ([call(world.store) for _ in range(repeat)], sorted(world.replies()), world.leased(batch_id))
            for world in self._worlds
        ]


@pytest.mark.parametrize("seed", range(6))
def test_both_stores_lead_the_same_life(redis: Redis, seed: int) -> None:
    real = RedisWorld(redis)
    trace = Trace(random.Random(seed), [real, MemoryWorld()])
    for _ in range(80):
        trace.step()
    real.close()
