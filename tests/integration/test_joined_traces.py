"""Whatever happens to requests that ask the same, in any order: each ends exactly once, and nothing is left over."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import pytest
from msgspec import structs
from redis import Redis

from batching.claim.lease import Entry, Verdict
from batching.claim.store import Blame, Claim, RedisBatchStore
from batching.coalescing import others_of
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.keys import Shard
from config.tiers import TIERS, Tier
from tasks.client.dedup import DedupIdentity
from tasks.protocol.results import CeleryCodec
from tests.fakes.door import MODEL, Door
from tests.fakes.messages import celery_message

KEYS = Shard()
CODEC = CeleryCodec(60_000)
QUESTIONS = 3
STEPS = 120


class World:
    """A door and a worker; `ends` counts how often each request was settled."""

    def __init__(self, redis: Redis, seed: int) -> None:
        self.redis = redis
        self.rng = random.Random(seed)
        self.door = Door(redis, name=f"door-{seed}")
        self.store = RedisBatchStore(redis, "w")
        self.sent: dict[str, Tier] = {}
        self.taken_back: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.leases: list[Claim] = []
        self._numbers = itertools.count()

    def submit(self) -> None:
        batch = []
        for _ in range(self.rng.randint(1, 4)):
            tier = self.rng.choice(TIERS)
            question = f"{self.rng.randrange(QUESTIONS):064x}"
            once = DedupIdentity(question=question)
            timeout_ms = self.rng.choice((60_000, 60_000, 2))
            batch.append(
                structs.replace(self.door.request(tier, None, timeout_ms), tracked=self.rng.random() < 0.5, once=once)
            )
            self.sent[batch[-1].task_id] = tier
        assert self.door.flush(batch) == [None] * len(batch)

    def claim(self) -> None:
        claim = self.store.claim(MODEL, f"b{next(self._numbers)}", self.rng.choice((1, 2, 64)))
        if claim.entries:
            self.leases.append(claim)

    def take_back(self) -> None:
        """Its caller has gone: known whether it is tracked or not."""
        waiting = [each for each in self.sent if not self.ends[each] and each not in self.taken_back]
        if waiting:
            task_id = self.rng.choice(waiting)
            self.taken_back.add(task_id)
            self.redis.zadd(KEYS.cancelled(), {task_id: 10**14})

    def worker_dies(self) -> None:
        if self.leases:
            claim = self.leases.pop(self.rng.randrange(len(self.leases)))
            self.store.give_back(MODEL, claim.batch_id, self.rng.choice((Blame.NOTHING, Blame.ATTEMPT, Blame.SUSPECT)))

    def pause(self) -> None:
        if self.leases:
            claim = self.leases.pop(self.rng.randrange(len(self.leases)))
            assert self.store.put_aside(
                MODEL, claim.batch_id, [(each.position, 0) for each in claim.entries], last=True
            )

    def finish(self, *, well: bool = False) -> None:
        if not self.leases:
            return
        claim = self.leases.pop(self.rng.randrange(len(self.leases)))
        info = BatchInfo(claim.batch_id, MODEL, "1", 1, Reason.IDLE, claim.view.now_ms, 0.001)
        pairs = [self._settled(each, well=well) for each in claim.entries]
        results = [CODEC.encode(*pair, info) for pair in pairs]
        finished = self.store.finish(claim.batch_id, results, last=True)
        assert finished
        others, shared = others_of(finished.others, pairs)
        assert shared <= len(others)
        for request, outcome in (*pairs, *others):
            self._ended(request, outcome)
        # Late, and after somebody else has had it: nothing.
        assert not self.store.finish(claim.batch_id, results, last=True)

    def _settled(self, entry: Entry, *, well: bool) -> tuple[Request, Outcome]:
        request = CODEC.decode(entry)
        if entry.verdict is Verdict.CANCELLED:
            return request, Cancelled()
        if entry.verdict is not Verdict.RUN:
            return request, Expired()
        outcomes: list[Outcome] = [Ok(b"1"), Rejected("no"), Failed("bad"), Failed("busy", retryable=True), Expired()]
        return request, outcomes[0] if well else self.rng.choice(outcomes)

    def _ended(self, request: Request, outcome: Outcome) -> None:
        self.ends[request.id] += 1
        assert request.tier is self.sent[request.id]
        if isinstance(outcome, Cancelled):
            assert request.id in self.taken_back
        elif request.result_ttl_ms:
            stored = msgspec.json.decode(self.redis.get(KEYS.result(request.id)))
            assert stored["task_id"] == request.id
            assert stored["status"] == ("SUCCESS" if isinstance(outcome, Ok) else "FAILURE")
            assert stored["bunch"]["tier"] == request.tier.value

    def play(self) -> None:
        steps = (self.submit, self.submit, self.claim, self.finish, self.take_back, self.worker_dies, self.pause)
        for _ in range(STEPS):
            self.rng.choice(steps)()
        for _ in range(10 * STEPS):
            self.claim()
            if not self.leases:
                break
            self.finish(well=True)


@pytest.mark.parametrize("seed", range(25))
def test_each_ends_once_and_nothing_is_left(redis: Redis, seed: int) -> None:
    world = World(redis, seed)
    world.play()
    assert Counter(world.ends.values()) == {1: len(world.sent)}
    assert world.store.look(MODEL).depth == 0
    assert not redis.keys("bunch:asked:*")
    assert not redis.keys("bunch:joined:*")
    assert not redis.keys("bunch:lease:*")
    assert not redis.zcard(KEYS.delayed(MODEL))
    # Who had ended before is forgotten with time.
    assert {each.decode() for each in redis.zrange(KEYS.cancelled(), 0, -1)} <= world.taken_back
    world.door.close()


def test_more_than_one_step_may_answer_are_answered_in_several(redis: Redis) -> None:
    door, store = Door(redis, queue_timeout_ms=60_000), RedisBatchStore(redis, "w")
    once = DedupIdentity(question=f"{7:064x}")
    asked = [structs.replace(door.request(Tier.PAID, timeout_ms=60_000), once=once) for _ in range(10)]
    assert door.flush(asked) == [None] * 10
    output = Ok(b'"' + b"x" * 20_000_000 + b'"')
    served = 0
    for number in range(2):
        claim = store.claim(MODEL, f"b{number}", 64)
        assert len(claim.entries) == 1
        request = CODEC.decode(claim.entries[0])
        assert (request.attempt, request.lost) == (1, 0)
        info = BatchInfo(claim.batch_id, MODEL, "1", 1, Reason.IDLE, claim.view.now_ms, 0.001)
        finished = store.finish(claim.batch_id, [CODEC.encode(request, output, info)], last=True)
        served += 1 + len(finished.others)
    # After 64 MiB of results, one of those who are left asks again.
    assert served == 10
    assert not store.claim(MODEL, "b9", 64).entries
    assert not redis.keys("bunch:asked:*")
    assert not redis.keys("bunch:joined:*")
    door.close()
    redis.flushdb()


def test_the_outcome_of_the_first_is_stored_whatever_is_wrong_with_the_others(redis: Redis) -> None:
    door, store = Door(redis), RedisBatchStore(redis, "w")
    once = DedupIdentity(question=f"{8:064x}")
    first, second = (structs.replace(door.request(Tier.PAID), tracked=True, once=once) for _ in range(2))
    door.flush([first, second])
    claim = store.claim(MODEL, "b1", 64)
    redis.set(KEYS.queue(MODEL, Tier.PAID), "not a list")
    info = BatchInfo("b1", MODEL, "1", 1, Reason.IDLE, claim.view.now_ms)
    request = CODEC.decode(claim.entries[0])
    assert store.finish("b1", [CODEC.encode(request, Cancelled(), info)], last=True)
    assert msgspec.json.decode(redis.get(KEYS.result(first.task_id)))["status"] == "REVOKED"
    door.close()
    redis.flushdb()


@pytest.mark.parametrize("place", [0, 1, 250, 499, 500])
def test_one_who_moves_up_is_found_in_a_long_queue(redis: Redis, place: int) -> None:
    door = Door(redis, admission="off")
    queue = KEYS.queue(MODEL, Tier.FREE)
    once = DedupIdentity(question=f"{9:064x}")
    sent = [door.request(Tier.FREE) for _ in range(500)]
    sent.insert(place, structs.replace(door.request(Tier.FREE), once=once))
    for start in range(0, len(sent), 50):
        door.flush(sent[start : start + 50])
    # Anybody's, in the middle, and one that came back to the head.
    redis.linsert(queue, "BEFORE", redis.lindex(queue, 200), celery_message())
    redis.rpush(queue, redis.lpop(queue) if place < 500 else b"{}")
    door.flush([structs.replace(door.request(Tier.ENTERPRISE), once=once)])
    left = b"".join(redis.lrange(queue, 0, -1))
    assert sent[place].task_id.encode() + b'"' not in left
    assert redis.llen(queue) == len(sent) + (place == 500)
    assert redis.llen(KEYS.queue(MODEL, Tier.ENTERPRISE)) == 1
    assert redis.hlen(KEYS.joined(once.question)) == 1
    door.close()
    redis.flushdb()
