"""`python -m tests.benchmarks.claim_cost`: what a claim and its finish cost over shards, against one shard's store.

Each way takes batches from places that all lie on one Valkey of its own. The ways alternate in short blocks, so that a
drift of the machine affects all alike; the results are medians of the blocks: µs of a batch as a loop waits for it, and
µs of Redis' time (`INFO commandstats`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

import click
from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_store import ShardedBatchStore
from batching.claim.store import BatchStore, RedisBatchStore
from config.shards import Place
from config.tiers import Tier
from tests.fakes.store import epoch_ms
from tests.fakes.worlds import HOUR_MS, MODEL, ours, settled
from tests.shards import places_of
from tests.valkey import PrivateValkey

SIZE = 64
_BATCHES = 40


@dataclass
class Way:
    """A store, and the places whose queues have what it claims: each batch's share of the messages in each."""

    name: str
    store: BatchStore
    filled: Sequence[Place]
    wall_us: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)


def ways_of(redis: Redis) -> list[Way]:
    """One shard: a queue with a backlog. Several: a backlog in each, or as much in each as fills one batch together."""
    home = places_of(redis, 1).home
    ways = [Way("one shard", RedisBatchStore(redis, "w"), [home])]
    ways.append(Way("the sharded store, one place", ShardedBatchStore(PlaceLines(places_of(redis, 1)), "w"), [home]))
    for shards in (4, 16):
        places = places_of(redis, shards)
        for name, filled in (("a backlog in one", 1), ("a backlog in each", shards)):
            store = ShardedBatchStore(PlaceLines(places), "w")
            ways.append(Way(f"{shards} shards, {name}", store, places.shards[:filled]))
        store = ShardedBatchStore(PlaceLines(places), "w")
        ways.append(Way(f"{shards} shards, a batch from all of them", store, places.shards))
    return ways


def run_block(redis: Redis, way: Way, number: count[int]) -> None:
    """Some batches; one that comes from all shards is queued just before it is claimed."""
    redis.flushdb()
    together = way.name.endswith("all of them")
    if not together:
        _fill(way, _BATCHES * SIZE // len(way.filled) + 2 * SIZE)
    wall_s = redis_us = 0.0
    for _ in range(_BATCHES):
        if together:
            _fill(way, SIZE // len(way.filled))
        redis.config_resetstat()
        began = time.perf_counter()
        batch_id = f"b{next(number)}"
        if together:
            # As a policy does that does not know yet that a batch is waiting.
            way.store.look(MODEL)
        claim = way.store.claim(MODEL, batch_id, SIZE)
        wall_s += time.perf_counter() - began
        outcomes = [settled(each.position, f"{batch_id}-{each.position}") for each in claim.entries]
        began = time.perf_counter()
        way.store.finish(batch_id, outcomes, last=True)
        wall_s += time.perf_counter() - began
        stats: Any = redis.info("commandstats")
        redis_us += stats["cmdstat_evalsha"]["usec"]
        assert len(claim.entries) == SIZE, way.name
    way.wall_us.append(wall_s * 1e6 / _BATCHES)
    way.redis_us.append(redis_us / _BATCHES)


def _fill(way: Way, each: int) -> None:
    soon = epoch_ms() + HOUR_MS
    for n, place in enumerate(way.filled):
        messages = [ours(f"{n}-{i:06d}", tracked=False, enqueued=soon) for i in range(each)]
        place.redis.lpush(place.keys.queue(MODEL, Tier.PAID), *messages)


@click.command()
@click.option("--rounds", default=7, show_default=True)
def main(rounds: int) -> None:
    """Print µs of a batch of 64, and the ratio to one shard."""
    server = PrivateValkey()
    server.start()
    try:
        redis = server.client()
        ways, number = ways_of(redis), count()
        for _ in range(rounds + 1):
            for way in ways:
                run_block(redis, way, number)
        first = ways[0]
        for way in ways:
            # The first block of each warms up.
            wall, mine = median(way.wall_us[1:]), median(way.redis_us[1:])
            ratios = [
                f"{mine_ / median(of[1:]):5.2f}×" for mine_, of in ((wall, first.wall_us), (mine, first.redis_us))
            ]
            click.echo(f"{way.name:38} {wall:7.0f} µs {ratios[0]}   Redis {mine:6.0f} µs {ratios[1]}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
