"""Shared fixtures: a private Valkey on a free port, for every test that wants a real one.

And how the tests are shared out when several processes run them (`make test`): a file stays whole, since its tests
share what they started, and so do the tests that share one stack. Those folders take longest, so they go first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.valkey import PrivateValkey

# Fixtures that stand for a whole stack, one for the session.
_STACKS = ("stack", "stage")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        shared = [name for name in _STACKS if name in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: _turn(item.path))


def _turn(path: Path) -> int:
    """Stable: within a folder nothing changes its place."""
    folders = ("e2e", "chaos", "integration")
    return folders.index(path.parent.name) if path.parent.name in folders else len(folders)


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
