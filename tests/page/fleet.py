"""A fleet of any size for the page: a real frontend over a private Valkey, to which a thread writes the reports that
workers with so many models would.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from redis import Redis
from redis.exceptions import RedisError

from batching.claim.registry import WorkerRegistry
from cli.supervisor.ports import free_port
from config.keys import Shard
from config.settings import load_settings
from config.tiers import TIERS, Tier
from tasks.fleet.process_register import Presence
from tasks.fleet.registry_reader import ExecutorRow, WorkerRow
from tasks.observability import metrics
from tests.e2e.stack import ROOT
from tests.fakes.messages import our_message
from tests.shards import inherited_environment
from tests.valkey import PrivateValkey
from tests.waiting import PATIENCE_S, wait_until

KEYS = Shard()
TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/model.py", line 7, in load
    self.weights = read(path)["weights"]
                   ~~~~~~~~~~^^^^^^^^^^^
KeyError: 'weights'
"""


class Sums:
    """Counters of all processes of one stack; another fleet of this process has its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("bunch_requests", "-", ("model", "tier", "code"), registry=registry)
        self.missed = Counter("bunch_slo_missed", "-", ("tier",), registry=registry)
        labels = ("model", "tier")
        self.seconds = Histogram("bunch_request_seconds", "-", labels, buckets=metrics.SECONDS, registry=registry)
        self.sizes = Histogram("bunch_batch_size", "-", ("model",), buckets=metrics.SIZES, registry=registry)
        self.batches = Counter("bunch_batches", "-", ("model", "reason"), registry=registry)

    def write(self, redis: Redis) -> None:
        samples: dict[Any, Any] = {
            msgspec.json.encode([sample.name, sample.labels]).decode(): sample.value
            for family in self._registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        redis.hset(KEYS.metrics(), mapping=samples)


class ShownFleet:
    """Two workers with `count` models, of which `active` get requests. Attributes may be changed while it runs."""

    def __init__(self, folder: Path, count: int, active: int) -> None:
        self.models = [f"{'embed' if n % 2 else 'rerank'}-{n:02d}" for n in range(count)]
        self.active = self.models[:active]
        self.refused = 0.0
        self.failing: str = ""
        self.busy = 0.3
        self._folder = folder
        self.valkey = PrivateValkey()
        self._sums = Sums()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._port = port

    def start(self) -> None:
        self.valkey.start()
        self.redis = self.valkey.client()
        config = self._folder / "bunch.toml"
        tables = [f'[models.{name}]\nsource = "workers.models.echo:Echo"' for name in self.models]
        config.write_text("\n".join(tables) + "\n")
        environment = inherited_environment()
        environment |= {
            "BUNCH_REDIS_URL": self.valkey.url, "BUNCH_CONFIG": str(config),
            "BUNCH_STATE_DIR": str(self._folder / "var"),
            "BUNCH_HTTP_PORT": str(self._port), "BUNCH_WEB_WORKERS": "1",
        }  # fmt: skip
        self._thread.start()
        with (self._folder / "web.txt").open("wb") as output:
            self._web = subprocess.Popen(
                [sys.executable, "manage.py", "web"], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        wait_until(self._answers, what="the frontend answers")

    def stop(self) -> None:
        self._stop.set()
        self._web.terminate()
        with suppress(ProcessLookupError):
            os.kill(self.valkey.pid, signal.SIGCONT)
        self._web.wait(PATIENCE_S)
        self._thread.join(10)
        self.valkey.stop()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Stop Redis, as if its machine had stalled."""
        os.kill(self.valkey.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.valkey.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/healthz").status_code == 200
        return False

    def _live(self) -> None:
        dice = random.Random(1)
        registry = WorkerRegistry(self.redis, 5.0)
        configured = load_settings({}, str(self._folder / "bunch.toml")).models
        ops = Presence(self.redis, "ops", lambda: configured, lambda: "ops@a-rather-long-hostname")
        for tier, count in ((Tier.PAID, 3), (Tier.FREE, 12)):
            for n in range(count):
                queue = KEYS.queue(self.models[0], tier)
                self.redis.lpush(queue, our_message(f"q{tier.value}{n}", b"1", tier=tier))
        while not self._stop.wait(0.5):
            with suppress(RedisError):
                for number in (1, 2):
                    row = self._worker(number, dice)
                    registry.beat(row.id, msgspec.json.encode(row))
                ops.beat()
                self._count(dice)
                self._sums.write(self.redis)

    def _worker(self, number: int, dice: random.Random) -> WorkerRow:
        def executor(name: str) -> ExecutorRow:
            if name == self.failing and number == 2:
                return ExecutorRow(name, f"{name}/0", "failed", TRACEBACK, pid=4000)
            busy = self.busy * (0.9 + dice.random() / 10) if name in self.active else 0.0
            return ExecutorRow(name, f"{name}/0", "ready", None, busy, 40, pid=4000, one_ms=12.5, rate_rps=426.0)

        rows = tuple(map(executor, self.models))
        return WorkerRow(
            f"a-rather-long-hostname-{number}-471{number}-0f1e2d3c", "a-rather-long-hostname", 4710 + number,
            time.time() - 600, rows, node=f"worker{number}@a-rather-long-hostname",
        )  # fmt: skip

    def _count(self, dice: random.Random) -> None:
        sums = self._sums
        for name in self.active:
            for tier in TIERS:
                asked = dice.randrange(5, 15)
                refused = round(asked * self.refused) if tier is Tier.FREE else 0
                for code, number in (("OK", asked - refused), ("SERVICE_OVERLOADED", refused)):
                    if number:
                        sums.requests.labels(name, tier.value, code).inc(number)
                sums.missed.labels(tier.value).inc(refused)
                for _ in range(asked - refused):
                    sums.seconds.labels(name, tier.value).observe(0.02 + dice.random() / 10)
            sums.sizes.labels(name).observe(dice.choice((1, 4, 8, 16)))
            sums.batches.labels(name, dice.choice(("full", "idle", "delay"))).inc()
