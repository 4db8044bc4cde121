"""The batch stores that have one contract: in memory, over one Redis, and over one and four shards of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.worlds import MemoryWorld, RedisWorld, sharded_world


@pytest.fixture(params=["memory", "redis", "one place", "four places"])
def world(request: pytest.FixtureRequest) -> Iterator[MemoryWorld | RedisWorld]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    redis = request.getfixturevalue("redis")
    counts = {"one place": 1, "four places": 4}
    made = sharded_world(redis, counts[request.param]) if request.param in counts else RedisWorld(redis)
    yield made
    made.close()
