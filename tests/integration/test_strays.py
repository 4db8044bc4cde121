"""A lease of which its living worker knows nothing is queued again; one that it holds is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from batching.claim.store import Blame, RedisBatchStore
from batching.claim.strays import LOOK_EVERY_S, Strays
from config.keys import Shard
from config.tiers import Tier
from tests.fakes.door import MODEL, Door

KEYS = Shard()


class Worker:
    def __init__(self, redis: Redis) -> None:
        self.now = 100.0
        self.held: set[str] = set()
        self.store = RedisBatchStore(redis, "w1")
        self.strays = Strays(redis, "w1", lambda: self.held, lambda: self.now)

    def claim(self, batch_id: str) -> None:
        assert self.store.claim(MODEL, batch_id, 2).entries

    def look(self) -> int:
        self.now += LOOK_EVERY_S
        return self.strays.look()


@pytest.fixture
def worker(redis: Redis) -> Iterator[Worker]:
    door = Door(redis, admission="off")
    door.send(Tier.PAID, 2)
    door.send(Tier.FREE, 2)
    yield Worker(redis)
    door.close()


def test_what_nobody_holds_is_queued_again_at_the_second_look(redis: Redis, worker: Worker) -> None:
    worker.claim("w1-0-1")
    waiting = sum(redis.llen(queue) for queue in KEYS.queues(MODEL))
    assert worker.look() == 0
    assert worker.look() == 2
    assert sum(redis.llen(queue) for queue in KEYS.queues(MODEL)) == waiting + 2
    assert not redis.exists(KEYS.lease("w1-0-1"), KEYS.leases("w1"))
    assert worker.look() == 0


def test_what_is_in_hand_is_left_there_however_long_it_takes(redis: Redis, worker: Worker) -> None:
    worker.claim("w1-0-1")
    worker.held = {"w1-0-1"}
    assert [worker.look() for _ in range(3)] == [0, 0, 0]
    # Being settled at one look, and gone at the next.
    worker.held = set()
    assert worker.look() == 0
    worker.store.give_back(MODEL, "w1-0-1", Blame.NOTHING)
    worker.claim("w1-0-2")
    worker.held = {"w1-0-2"}
    assert worker.look() == 0
    assert redis.exists(KEYS.lease("w1-0-2"))


def test_looks_are_rare(redis: Redis, worker: Worker) -> None:
    worker.claim("w1-0-1")
    assert worker.look() == 0
    for _ in range(3):
        worker.now += LOOK_EVERY_S / 4
        assert worker.strays.look() == 0
    assert redis.exists(KEYS.lease("w1-0-1"))
