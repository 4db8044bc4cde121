"""Shared fixtures: a private Valkey on a free port, for every test that wants a real one.

It also sets the order of the tests, and which of them a process of `make test` takes together (tests/scheduling.py).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from redis import Redis

from tests import leftovers, shards
from tests.scheduling import ByStack, turn
from tests.valkey import PrivateValkey

# Each role and executor that a test starts would compile all its modules again, and each worker of pytest-xdist would
# rewrite all asserts: a third of what a start costs. Images set this in the environment for themselves.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# `make check` tries fewer examples than `make test`; it has no deadline either.
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("ci"), max_examples=20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: turn(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByStack | None:
    return ByStack(config, log) if config.getvalue("dist") == "loadfile" else None


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
    shards.flush(client)
    yield shards.everywhere(client)
    client.close()


def pytest_configure(config: pytest.Config) -> None:
    # The order is that of `pytest_collection_modifyitems`; pytest-xdist would start with the files of most tests.
    config.option.loadscopereorder = False
    _restore_sigint()
    leftovers.pytest_configure(config)


def _restore_sigint() -> None:
    """Restore SIGINT: a shell without job control makes background processes and their children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
