"""Shared fixtures: a private Valkey on a free port, for every test that wants a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.valkey import PrivateValkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis(valkey: PrivateValkey) -> Iterator[Redis]:
    """A client of the private server, on an empty database."""
    client = valkey.client()
    client.flushdb()
    yield client
    client.close()
