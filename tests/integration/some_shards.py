"""Shards on one server, on its cluster or on several servers, and a worker's store over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_store import ShardedBatchStore
from config.keys import Shard
from config.shards import Place, Places
from config.tiers import Tier
from tests.fakes.worlds import MODEL, name_of, ours
from tests.shards import places_of


class Shards:
    """Some shards and the home, on one server or its cluster, or on several, and what is done with them."""

    def __init__(self, *servers: Redis, count: int = 4, worker: str = "w1") -> None:
        self.places = places_of(servers[0], count) if len(servers) == 1 else _over(servers, count)
        self.home = self.places.home
        self.all = tuple(self.places)
        self.lines = PlaceLines(self.places)
        self.store = ShardedBatchStore(self.lines, worker)

    def put(self, shard: int, *task_ids: str, tier: Tier = Tier.PAID, **options: Any) -> None:
        self.put_raw(shard, *(ours(task_id, **options) for task_id in task_ids), tier=tier)

    def put_raw(self, shard: int, *messages: bytes, tier: Tier = Tier.PAID) -> None:
        place = self.all[shard]
        place.redis.lpush(place.keys.queue(MODEL, tier), *messages)
        place.redis.lpush(place.keys.bell(MODEL), 1)
        place.redis.ltrim(place.keys.bell(MODEL), 0, 0)

    def queued(self, shard: int, tier: Tier = Tier.PAID) -> list[str]:
        place = self.all[shard]
        return [name_of(each) for each in place.redis.lrange(place.keys.queue(MODEL, tier), 0, -1)][::-1]  # type: ignore[arg-type]

    def leased(self, batch_id: str) -> list[int]:
        """The shards that have a lease of the batch."""
        return [n for n, place in enumerate(self.all) if place.redis.exists(place.keys.lease(batch_id))]

    def result(self, shard: int, task_id: str) -> bytes | None:
        found: bytes | None = self.all[shard].redis.get(self.all[shard].keys.result(task_id))  # type: ignore[assignment]
        return found


def _over(servers: Sequence[Redis], count: int) -> Places:
    shards = (Place(Shard(f"{{s{number}}}"), servers[number % len(servers)], number) for number in range(count))
    return Places(Place(Shard(), servers[0]), tuple(shards))
