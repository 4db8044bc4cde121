"""The number of shards that the tests run with: `TEST_SHARDS`, one by default.

    TEST_SHARDS=4 pytest tests/integration      (`make shards`)

It is read here alone. What a test starts gets it with its environment, what it makes in its own process by `places_of`.
"""

from __future__ import annotations

import os

from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_store import make_store
from batching.claim.store import BatchStore
from config.settings import Settings
from config.shards import Places, open_places
from config.tiers import Tier

SHARDS = int(os.environ.get("TEST_SHARDS", "1"))


def inherited_environment() -> dict[str, str]:
    """The environment for a process that a test starts: without the developer's own settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("BUNCH_")}
    return inherited | ({"BUNCH_SHARDS": str(SHARDS)} if SHARDS > 1 else {})


def places_of(redis: Redis, count: int = SHARDS) -> Places:
    """The places of requests, all on the server of `redis`."""
    return open_places(Settings(shards=count), redis)


def store_of(redis: Redis, worker_id: str) -> BatchStore:
    """A worker's store over all places on the server of `redis`."""
    return make_store(Settings(shards=SHARDS), PlaceLines(places_of(redis)), worker_id)


def depth_of(redis: Redis, model: str, tier: Tier = Tier.PAID) -> int:
    """The number of requests in a tier queue, in all shards."""
    return sum([redis.llen(place.keys.queue(model, tier)) for place in places_of(redis)])
