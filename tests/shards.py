"""The number of shards that the tests run with: `BUNCH_TEST_SHARDS`, one by default."""

from __future__ import annotations

import os

from redis import Redis

from config.settings import Settings
from config.shards import Places, open_places

SHARDS = int(os.environ.get("BUNCH_TEST_SHARDS", "1"))
ENVIRONMENT = {"BUNCH_SHARDS": str(SHARDS)} if SHARDS > 1 else {}
"""For the processes that a test starts."""


def places_of(redis: Redis, count: int = SHARDS) -> Places:
    """The places of requests, all on the server of `redis`."""
    return open_places(Settings(shards=count), redis)
