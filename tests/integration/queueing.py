"""Queues our messages by hand, for tests of the scripts that take them out."""

from __future__ import annotations

from redis import Redis

from batching.fast_header import FastHeader, write_fast_header
from config.keys import Shard
from config.tiers import Tier

KEYS = Shard()
MODEL = "m"


def now_ms(redis: Redis) -> int:
    seconds, micros = redis.time()
    return seconds * 1000 + micros // 1000


def put(redis: Redis, task_id: str, tier: Tier = Tier.PAID, *, limit_in_ms: int = 60_000) -> bytes:
    now = now_ms(redis)
    stamp = FastHeader(now + 90_000, now + limit_in_ms, now, 0, 0, True, 60_000, task_id)
    message = write_fast_header(stamp) + b'","id":"' + task_id.encode() + b'"}}'
    redis.lpush(KEYS.queue(MODEL, tier), message)
    redis.set(KEYS.result(task_id), '{"status":"PENDING"}')
    return message
