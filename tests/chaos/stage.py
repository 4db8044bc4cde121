"""The stack that the chaos tests break (two frontends, two workers, an embedded Valkey), and its vital signs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil
from redis import Redis
from redis.exceptions import RedisError

from cli.supervisor.probes import get
from config.keys import Shard
from tasks.fleet.registry_reader import Fleet, WorkerRow
from tests.e2e.stack import ROOT, Stack
from tests.waiting import wait_until

KEYS = Shard()
LEASE_TTL_S = 5.0

CONFIG = """\
default_model = "steady"

[models.steady]
source = "workers.models.simulated:Simulated"
options = {{ batch_ms = 20, item_ms = 0.5 }}
max_batch_size = 32

# The first call of a test fills a batch of 64, however slowly its requests come.
[models.cursed]
source = "tests.chaos.models:Cursed"
options = {{ repaired = "{folder}/repaired" }}
policy = "fixed"
max_batch_size = 64
max_wait_ms = 1500
timeout_ms = 1000
max_memory_bytes = 250_000_000

[models.tally]
source = "tests.chaos.models:Tally"
options = {{ gate = "{folder}/gate", tally = "{folder}/tally" }}
max_batch_size = 1
timeout_ms = 120000
"""
MODELS = ("steady", "cursed", "tally")
# A handful per model, tier or worker, or bounded by count; and kombu's own.
FEW = (
    *("bunch:workers", "bunch:share:", "bunch:bell:", "bunch:metrics", "bunch:dead", "bunch:cancelled"),
    *("bunch:edition:", "bunch:blobs:bytes", "_kombu.binding", "bunch.ops"),
)


class Stage(Stack):
    """`Stack` with what a test needs that kills processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG.format(folder=folder))
        self.folder = folder
        self.config = f"--config={self.config_file}"
        self.gate = folder / "gate"
        self.tally = folder / "tally"
        self.repaired = folder / "repaired"
        self.gate.touch()

    def open(self) -> Self:
        return self.start(
            "--web-workers=2",
            "--workers=2",
            "--no-flower",
            # While executors die all the time, predictions are worthless.
            admission="off",
            queue_timeout_ms=60_000,
            request_timeout_ms=60_000,
            lease_ttl_ms=int(LEASE_TTL_S * 1000),
        )

    def beside(self, role: str, name: str, *options: str, **settings: object) -> subprocess.Popen[bytes]:
        """Start a role outside of `up`, with a log like the others; the caller ends it."""
        extra = {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
        with (self.state_dir / "log" / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "manage.py", role, self.config, *options],
                cwd=ROOT, env=self._environment | extra, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def pid(self, name: str) -> int | None:
        return next(row.pid for row in self.rows() if row.name == name)

    def workers(self) -> list[WorkerRow]:
        """The registry's living workers, those of `up` and others."""
        with self.redis() as redis:
            return Fleet(redis, lease_ttl_s=LEASE_TTL_S).healthy()

    def executors(self, model: str = "steady") -> list[int]:
        return [each.pid for row in self.workers() for each in row.models if each.model == model and each.pid]

    def is_whole(self) -> bool:
        """Return whether everything runs, and each worker of `up` has each model ready."""
        rows = self.rows()
        if any(row.state != "running" or row.pid is None or not psutil.pid_exists(row.pid) for row in rows):
            return False
        try:
            workers = {row.pid: row for row in self.workers()}
        except RedisError:
            return False
        mine = [row.pid for row in rows if row.role == "worker"]
        return len(self.frontends()) == 2 and all(
            pid in workers and all(each.state == "ready" for each in workers[pid].models) for pid in mine if pid
        )

    def heal(self) -> None:
        wait_until(self.is_whole, what="all processes run and all models are ready")

    def waiting_callers(self) -> list[int]:
        """The number of waiting callers per frontend, as it reports them itself; the frontend that gets the request
        answers.
        """
        found: dict[str, int] = {}
        for _ in range(200):
            status, body = get("127.0.0.1", self.port, "/healthz")
            if status == 200:
                about = json.loads(body)
                found[about["process"]] = about["waiting"]
            if len(found) == 2:
                break
        return list(found.values())

    def lasting_keys(self) -> set[str]:
        """Keys that never expire, except those that are few by design."""
        with self.redis() as redis:
            names = [each.decode() for each in redis.scan_iter("*", 1000) if redis.ttl(each) == -1]
        return {each for each in names if not each.startswith(FEW)}

    def left_in_redis(self) -> dict[str, object]:
        """Data of requests that are neither finished nor forgotten: empty when all is done."""
        with self.redis() as redis:
            return left_in(redis)


def left_in(redis: Redis) -> dict[str, object]:
    found: dict[str, object] = {}
    for model in MODELS:
        for queue in KEYS.queues(model):
            found[queue] = redis.llen(queue)
        found[KEYS.delayed(model)] = redis.zcard(KEYS.delayed(model))
    found["leases"] = list(redis.scan_iter("bunch:lease:*", 1000)) + list(redis.scan_iter("bunch:leases:*", 1000))
    return {name: value for name, value in found.items() if value}


def send(pid: int | None, number: int) -> None:
    assert pid is not None
    os.kill(pid, number)


def stopped_for(pid: int | None, seconds: float, then: Callable[[], object] = lambda: None) -> None:
    """Stop a process for a time, as if it were swapped out, or on a machine that hangs."""
    send(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        then()
    finally:
        send(pid, signal.SIGCONT)
