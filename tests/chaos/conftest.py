"""One stack for all tests here that can share it.

The short form is part of all tests. `CHAOS_FAULTS=50` (`make chaos`) selects the long one with that many faults, and
correspondingly more in each test; `CHAOS_SEED` selects another order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.kubelet import Kubelet
from tests.chaos.stage import Stage
from tests.e2e.client import Api, connected
from tests.valkey import PrivateValkey

FAULTS = int(os.environ.get("CHAOS_FAULTS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))

long_only = pytest.mark.skipif(not FAULTS, reason="in the long form only: make chaos")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    each = Stage(tmp_path_factory.mktemp("chaos"))
    try:
        yield each.open()
        each.stop()
    finally:
        each.kill()


@pytest.fixture
def whole(stage: Stage) -> Stage:
    """The stack, repaired after an earlier test."""
    stage.heal()
    return stage


@pytest.fixture
def api(stage: Stage) -> Iterator[Api]:
    with connected(stage.port) as api:
        yield api


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """Machines without pods, on a Valkey of their own."""
    # Imported here: it needs gRPC's packages, which the other tests do not.
    from tests.chaos.traffic import kubelet_on

    valkey = PrivateValkey()
    valkey.start()
    each = kubelet_on(tmp_path, valkey.url)
    try:
        yield each
    finally:
        each.end()
        valkey.stop()
