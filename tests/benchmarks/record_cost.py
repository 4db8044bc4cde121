"""`python -m tests.benchmarks.record_cost`: the cost of the record of requests. A Valkey of its own, no stack.

Bytes are the memory of the stream as Redis reports it, divided by its requests; the time is from `INFO commandstats`.
"""

from __future__ import annotations

import random
import time

import click
from redis import Redis

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Ok, Request
from config.keys import Shard
from config.tiers import TIERS
from tasks.observability.batch_log import BatchLog
from tasks.observers.batch_log import FLUSH_EVERY_S, BatchLogObserver
from tasks.protocol.ids import new_id
from tests.valkey import PrivateValkey

REQUESTS = 20_000
_dice = random.Random(1)


def main() -> None:
    valkey = PrivateValkey()
    valkey.start()
    try:
        redis = valkey.client()
        click.echo("| batches of | requests/s | bytes | worker, µs | Redis, µs | found in, ms | an hour of it |")
        click.echo("|---|---|---|---|---|---|---|")
        for size, rate in ((64, 2000), (64, 300), (8, 300), (1, 100)):
            redis.flushall()
            redis.config_resetstat()
            click.echo(_row(redis, size, rate))
    finally:
        valkey.kill()


def _row(redis: Redis, size: int, rate: int) -> str:
    batch_log = BatchLogObserver(BatchLog(redis), lambda: "host-4711-0f1e2d3c")
    names = []
    spent = 0.0
    now_ms = int(time.time() * 1000)
    since_flush = 0
    for n in range(REQUESTS // size):
        now_ms += 1000 * size // rate
        members = [
            Request(
                new_id(), TIERS[_dice.randrange(3)], position, b"", b"", enqueued_ms=now_ms - _dice.randrange(80),
                sent_ms=now_ms - 82,
            )
            for position in range(size)
        ]  # fmt: skip
        names.append(members[0].id)
        took_s = _dice.random() / 20
        info = BatchInfo(
            f"host-4711-0f1e2d3c-0-{n:x}", "minilm", "1", size, Reason.FULL, now_ms, took_s, executor="minilm/0",
            wait_s=took_s / 3, turn_s=took_s * 1.1,
        )  # fmt: skip
        settled = [(each, Ok(b"1")) for each in members]
        started = time.thread_time()
        batch_log.claimed(members, info)
        batch_log.finished(settled, info)
        since_flush += size
        if since_flush >= rate * FLUSH_EVERY_S:
            batch_log.flush()
            since_flush = 0
        spent += time.thread_time() - started
    batch_log.flush()
    each = (redis.memory_usage(Shard().record("all"), samples=0) or 0) / REQUESTS
    stats = redis.info("commandstats")
    calls = [stats[f"cmdstat_{name}"] for name in ("evalsha", "eval") if f"cmdstat_{name}" in stats]
    redis_us = sum(each["usec"] for each in calls) / REQUESTS
    started = time.perf_counter()
    BatchLog(redis).find(names[len(names) // 2])
    found_ms = (time.perf_counter() - started) * 1000
    mib = each * rate * 3600 / 1_048_576
    return (
        f"| {size} | {rate:,} | {each:.0f} | {spent / REQUESTS * 1e6:.1f} | {redis_us:.2f} | {found_ms:.1f} "
        f"| {mib:.0f} MiB |"
    )


if __name__ == "__main__":
    main()
