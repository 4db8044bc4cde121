"""A worker whose device becomes far slower: what it reports of itself, from the batches that it computes."""

from __future__ import annotations

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
    def compute(prefix: str, seconds: bytes) -> None:
        for number in range(8):
            redis.lpush(Shard().queue("m", Tier.PAID), our_message(f"{prefix}{number}", seconds))

    def health() -> str:
        return str(runner.info()["health"])

    compute("quick", b"0.005")
    compute("slow", b"0.100")
    wait_until(lambda: health() == "degraded", what="it is degraded")
    (reason,) = runner.info()["reasons"]
    assert reason.startswith("m/0 takes ")
    compute("again", b"0.005")
    wait_until(lambda: health() == "healthy", what="it is quick again")
    compute("slow again", b"0.100")
    wait_until(lambda: health() == "degraded", what="it is degraded again")
    wait_until(lambda: runner.info()["in_hand"] == 0, what="all is computed")
    runner.reset("m")
    assert health() == "healthy"
