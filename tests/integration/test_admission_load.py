"""Quotas and fairness under load, on a real server: many frontends, and a key that asks for more than its share."""

from __future__ import annotations

import math
import multiprocessing
import random
from statistics import quantiles
from typing import NamedTuple

from redis import Redis

from batching.claim.registry import ModelThroughput
from batching.claim.store import RedisBatchStore
from batching.fast_header import read_fast_header
from config.keys import Shard
from config.redis import connect
from config.tiers import Tier
from tasks.protocol.quota import Quota
from tests.fakes.door import MODEL, Door, beat, reasons
from tests.valkey import PrivateValkey

KEYS = Shard()


def test_ten_thousand_requests_from_four_frontends_with_wrong_clocks(valkey: PrivateValkey, redis: Redis) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        skews = (-3600.0, 0.0, 1800.0, 3600.0)
        told = pool.starmap(_ask_2500_times, [(valkey.url, f"f{number}", skew) for number, skew in enumerate(skews)])
    let_in = sum(each.let_in for each in told)
    # The burst, and one for each interval between the first question and the last, give or take the one at the edge.
    longest_us = max(each.last_us[1] for each in told) - min(each.first_us[0] for each in told)
    shortest_us = max(each.last_us[0] for each in told) - min(each.first_us[1] for each in told)
    assert BURST + shortest_us / QUOTA.interval_us - 1 <= let_in <= BURST + longest_us / QUOTA.interval_us + 1
    assert redis.llen(KEYS.queue(MODEL, Tier.PAID)) == let_in


BURST = 500
QUOTA = Quota.of("k", 600, BURST)


class Told(NamedTuple):
    """The record of one frontend; Redis time in µs before and after its first and its last flush."""

    let_in: int
    first_us: tuple[float, float]
    last_us: tuple[float, float]


def _ask_2500_times(url: str, name: str, skew_s: float) -> Told:
    redis = connect(url)
    door = Door(redis, name, skew_s, admission="off")
    let_in = 0
    times = []
    for size in (1, 9, 40, 50) * 25:
        before = _redis_us(redis)
        let_in += reasons(door.send(Tier.PAID, size, quota=QUOTA)).count("")
        times.append((before, _redis_us(redis)))
    door.close()
    redis.close()
    return Told(let_in, times[0], times[-1])


def _redis_us(redis: Redis) -> float:
    seconds, micros = redis.time()
    return seconds * 1_000_000 + micros


BATCH = 16
STEPS = 400
KEYS_OF_ONE_TIER = [Quota.of(f"k{number}", 6_000_000, 10_000) for number in range(20)]
HOG = Quota.of("hog", 6_000_000, 10_000)


def test_one_key_with_twenty_times_its_share_does_not_slow_the_others_down(redis: Redis) -> None:
    """Real scripts in a time of their own: a step is a batch. Twenty keys ask for two thirds of what can be done."""
    door = Door(redis, queue_timeout_ms=60_000)
    alone, refused = _p95_of_the_ordinary(redis, door, hog=False)
    assert refused == 0
    redis.flushdb()
    beside, refused = _p95_of_the_ordinary(redis, door, hog=True)
    assert refused == 0
    assert beside < 1.2 * alone, f"{alone:.2f} batches alone, {beside:.2f} beside it"
    door.close()


def _p95_of_the_ordinary(redis: Redis, door: Door, *, hog: bool) -> tuple[float, int]:
    """In batches, from arrival to answer; and how many were refused."""
    rng = random.Random(7)
    store = RedisBatchStore(redis, "w1", ageing_s=3600)
    came: dict[str, float] = {}
    waits: list[float] = []
    refused = 0
    for step in range(STEPS):
        # What can be done in a second, so that free has room for 35 batches, or more than a window looks through.
        beat(redis, ModelThroughput(1, 100.0 * BATCH, 0.01, 0.01))
        arrivals = [
            (rng.random(), quota)
            for quota, mean in [*((each, BATCH * 2 / 3 / 20) for each in KEYS_OF_ONE_TIER), (HOG, BATCH * 2 / 3 * hog)]
            for _ in range(_poisson(rng, mean))
        ]
        arrivals.sort(key=lambda arrival: arrival[0])
        batch = [door.request(Tier.FREE, quota, 60_000) for _, quota in arrivals]
        for (at, quota), out, answer in zip(arrivals, batch, door.flush(batch), strict=True):
            if quota is not HOG:
                refused += answer is not None
                came[out.task_id] = step + at
        claim = store.claim(MODEL, f"b{step}-{hog}", BATCH)
        for entry in claim.entries:
            stamp = read_fast_header(entry.message)
            if stamp and stamp.task_id in came:
                waits.append(step + 2 - came[stamp.task_id])
    assert len(waits) > 0.9 * len(came)
    return quantiles(waits, n=20)[18], refused


def _poisson(rng: random.Random, mean: float) -> int:
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count, product = count + 1, product * rng.random()
    return count
