"""Requests in shards that `BUNCH_SHARDS` does not have any more: nobody would ever claim them, and no view shows them.

Only a number that became smaller leaves any. While workers beat in a shard they serve it, so that it becomes empty:
they may know more shards than the frontends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from config.cluster import slots_of
from config.installation import PROGRAM
from config.keys import Shard
from config.redis import connect
from config.redis_url import cluster_of, node_url
from config.schema import MAX_SHARDS
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Left:
    """The requests that wait in a shard, or are leased there; `served`: workers beat in it."""

    count: int
    served: bool


def left_shards(settings: Settings) -> dict[str, Left]:
    """The shards beyond ours that have requests, by their names. Raises RedisError."""
    found: dict[str, Left] = {}
    for redis, tags in _servers(settings):
        with closing(redis):
            found |= _left(redis, tags, tuple(settings.models), settings.lease_ttl_s * 1000)
    return found


def finding(settings: Settings, *, served: bool) -> str:
    """The text for an operator about shards that workers serve, or that they do not; empty if nothing is left there, or
    a server does not answer, which others say.
    """
    left: dict[str, int] = {}
    with suppress(RedisError):
        left = {name: each.count for name, each in left_shards(settings).items() if each.served is served}
    if not left:
        return ""
    most = max(int(name[1:]) for name in left) + 1
    where = f"{sum(left.values())} requests are in shards that it does not have ({', '.join(left)})"
    if served:
        return f"{where}; workers serve them: keep the BUNCH_SHARDS of the workers until this is gone"
    until = f"until `{PROGRAM} check` is content"
    return f"{where}, and no worker serves them; set BUNCH_SHARDS={most} for the workers {until}"


def _servers(settings: Settings) -> Iterator[tuple[Redis, list[Shard]]]:
    """Each server with the shards beyond ours that it would have."""
    has_none = settings.shard_count == 1 and not settings.is_clustered
    shards = [Shard(f"{{s{number}}}") for number in range(0 if has_none else settings.shard_count, MAX_SHARDS)]
    nodes = cluster_of(settings.redis_url)
    if nodes is None:
        yield connect(settings.redis_url, timeout_s=2.0), shards
        return
    for owner in slots_of(nodes).owners():
        host, port = owner.address
        mine = [each for each in shards if owner.first <= key_slot(each.tag.encode()) <= owner.last]
        yield connect(node_url(settings.redis_url, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")), mine


def _left(redis: Redis, shards: Sequence[Shard], models: Sequence[str], ttl_ms: float) -> dict[str, Left]:
    used = _used(redis, shards, models)
    seconds, micros = redis.time()
    now_ms = seconds * 1000 + micros / 1000
    found: dict[str, Left] = {}
    for shard in used:
        beats: list[tuple[bytes, float]] = redis.zrange(shard.workers(), 0, -1, withscores=True)  # type: ignore[assignment]
        pipeline: Any = redis.pipeline(transaction=False)
        for model in models:
            pipeline.zcard(shard.delayed(model))
            for queue in shard.queues(model):
                pipeline.llen(queue)
        for worker, _ in beats:
            pipeline.scard(shard.leases(worker.decode()))
        if count := sum(pipeline.execute()):
            served = any(now_ms - at_ms < ttl_ms for _, at_ms in beats)
            found[shard.tag.strip("{}")] = Left(count, served)
    return found


def _used(redis: Redis, shards: Sequence[Shard], models: Sequence[str]) -> list[Shard]:
    """Those that have anything."""
    pipeline: Any = redis.pipeline(transaction=False)
    for shard in shards:
        queues = (queue for model in models for queue in shard.queues(model))
        pipeline.exists(shard.workers(), *queues, *map(shard.delayed, models))
    return [shard for shard, count in zip(shards, pipeline.execute(), strict=True) if count]
