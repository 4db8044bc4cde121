"""The two batch stores that have one contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.worlds import MemoryWorld, RedisWorld


@pytest.fixture(params=["memory", "redis"])
def world(request: pytest.FixtureRequest) -> Iterator[MemoryWorld | RedisWorld]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    made = RedisWorld(request.getfixturevalue("redis"))
    yield made
    made.close()
