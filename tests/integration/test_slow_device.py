"""A worker whose device becomes far slower: what it reports of itself, from the batches that it computes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from batching.ports import NoFollowUp
from config.keys import Shard
from config.settings import load_settings
from config.tiers import Tier
from tests.fakes.messages import our_message
from tests.shards import redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until
from workers.health import slowdown, speed
from workers.runner import WorkerRunner

MODEL = """
import time

class Sleeps:
    def load(self, device):
        pass

    def predict(self, inputs, parameters):
        time.sleep(inputs[0])
        return [0] * len(inputs)
"""


@pytest.fixture
def runner(
    valkey: PrivateValkey, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerRunner]:
    # The rule is tested with its own windows in tests/unit/test_slowdown.py; they would take a minute here.
    for name, value in (("WINDOW", 2), ("LEARNING", 1), ("RECENT", 2)):
        monkeypatch.setattr(slowdown, name, value)
    monkeypatch.setattr(speed, "EVERY_S", 0.0)
    (tmp_path / "sleeping.py").write_text(MODEL)
    file = tmp_path / "bunch.toml"
    file.write_text('[models.m]\nsource = "sleeping:Sleeps"\nmax_batch_size = 1\ndevices = ["GPU-a"]\n')
    environment = redis_environment(valkey.url) | {"BUNCH_STATE_DIR": str(tmp_path / "var")}
    interval = sys.getswitchinterval()
    runner = WorkerRunner(load_settings(environment, str(file)), NoFollowUp())
    runner.start()
    yield runner
    runner.stop(cold=True)
    sys.setswitchinterval(interval)


def test_it_is_degraded_until_the_device_is_as_quick_as_before_or_an_operator_has_seen_it(
    runner: WorkerRunner, redis: Redis
) -> None:
    queue, numbers = Shard().queue("m", Tier.PAID), itertools.count()

    def compute(count: int, seconds: bytes) -> None:
        for _ in range(count):
            redis.lpush(queue, our_message(f"t{next(numbers)}", seconds))

    def health() -> str:
        return str(runner.info()["health"])

    def becomes(state: str, seconds: bytes) -> None:
        """Compute batches of that length until it is so: on a busy machine some of the quick ones are not."""

        def is_so() -> bool:
            if not redis.llen(queue):
                compute(4, seconds)
            return health() == state

        wait_until(is_so, what=f"it is {state}")

    # Far apart: a machine that is busy while it learns what is usual makes less of a difference.
    quick, slow = b"0.020", b"0.400"
    compute(8, quick)
    becomes("degraded", slow)
    (reason,) = runner.info()["reasons"]
    assert reason.startswith("m/0 takes ")
    becomes("healthy", quick)
    becomes("degraded", slow)
    wait_until(lambda: runner.info()["in_hand"] == 0, what="all is computed")
    runner.reset("m")
    assert health() == "healthy"
