"""The same random life in Redis and in memory: where a rule stands in Lua and in Python, both must agree."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from redis import Redis

from batching.claim.store import BatchStore, Blame
from batching.fast_header import NO_KEY
from config.schema import MAX_BATCH_BYTES
from config.tiers import TIERS
from tests.fakes.store import epoch_ms
from tests.fakes.worlds import (
    HOUR_MS,
    MODEL,
    PAUSE_MS,
    MemoryWorld,
    RedisWorld,
    World,
    foreign,
    name_of,
    ours,
    settled,
    sharded_world,
)


class Trace:
    """The same random life in several worlds; after each step they must look alike."""

    def __init__(self, rng: random.Random, worlds: Sequence[World]) -> None:
        self._rng = rng
        self._worlds = worlds
        self._batches: dict[str, list[tuple[int, str]]] = {}
        self._count = 0

    def step(self) -> None:
        act = self._rng.choice([self.put, self.put, self.claim, self.claim, self.end, self.cancel])
        ids = [f"t{i}" for i in range(self._count)]
        self._alike(act.__name__, act())
        self._alike("queues", [[world.queued(tier) for tier in TIERS] for world in self._worlds])
        self._alike("results", [world.results(ids) for world in self._worlds])
        self._alike("dead letters", [world.letters() for world in self._worlds])

    @staticmethod
    def _alike(what: str, seen: Sequence[object]) -> None:
        assert all(each == seen[0] for each in seen), what

    def put(self) -> list[object]:
        rng = self._rng
        tier = rng.choice(TIERS)
        # Aged, or never: between the two worlds no time passes that counts.
        born = rng.choice((1000, epoch_ms() + HOUR_MS))
        key = rng.choice((NO_KEY, "0000000a", "0000000b", "0000000c"))
        size = rng.choice((0, 0, 100, 5_000))
        for _ in range(rng.choice((1, 1, 5, 30))):
            task_id = f"t{self._count}"
            self._count += 1
            message = foreign(task_id) if rng.random() < 0.2 else ours(
                task_id, expired=rng.random() < 0.1, tracked=rng.random() < 0.5, enqueued=born + self._count, key=key,
                due_in_ms=rng.choice((HOUR_MS // 2, 2 * HOUR_MS)),
            )  # fmt: skip
            message = message[:-1] + b',"more":"%b"}' % (b"x" * size)
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
        attempts = rng.choice((1, 3, 4))
        margin_ms = rng.choice((0, 0, HOUR_MS))
        most = rng.choice((MAX_BATCH_BYTES, MAX_BATCH_BYTES, 1, 3_000, 12_000))
        claims = [
            world.store.claim(MODEL, batch_id, size, attempts, margin_ms=margin_ms, max_bytes=most)
            for world in self._worlds
        ]
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
        pauses = [(position, PAUSE_MS) for position, _ in some]

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


@pytest.mark.parametrize("seed", range(12))
def test_both_stores_lead_the_same_life(redis: Redis, seed: int) -> None:
    real = RedisWorld(redis)
    trace = Trace(random.Random(seed), [real, MemoryWorld()])
    for _ in range(80):
        trace.step()
    real.close()


@pytest.mark.parametrize("seed", range(6))
def test_one_of_four_shards_leads_the_same_life(redis: Redis, seed: int) -> None:
    real = sharded_world(redis, 4)
    trace = Trace(random.Random(seed), [real, MemoryWorld()])
    for _ in range(80):
        trace.step()
    real.close()
