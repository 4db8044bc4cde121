"""`up --cluster --replicas`: a laptop with several Redis for the requests, any of which may be lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from config.redis import connect
from tasks.protocol.ids import shard_of
from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\n'
OPTIONS = ("--web-workers=1", "--no-flower", "--cluster", "--replicas")


def test_a_node_may_be_killed_and_the_next_start_goes_on_with_what_each_had(tmp_path: Path) -> None:
    stack = Stack(tmp_path, MODEL)
    try:
        # However long the failover takes here.
        patient = {"failover_wait_ms": 25_000, **PATIENT}
        stack.start(*OPTIONS, durability="replica", **patient)
        assert [row.name for row in stack.rows() if row.role == "redis"] == [
            *(f"node-{number}" for number in range(1, 7)),
            "valkey",
        ]
        status = json.loads(stack.manage("status", "--json").stdout)
        assert status["redis_url"].startswith("cluster://")
        with connect(status["broker_url"]) as home:
            assert home.ping()
        with connected(stack.port) as api:
            # Without an owner, the question decides; another shard has it where that one does not answer yet.
            accepted = [api.later(f"before {number}") for number in range(20)]
            assert len({shard_of(each) for each in accepted}) > 3
            for number, each in enumerate(accepted):
                assert api.outcome(each)["output"] == f"before {number}"
            pid = next(row.pid for row in stack.rows() if row.name == "node-1")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert [api.infer(number).json["output"] for number in range(20)] == list(range(20))
            wait_until(lambda: pid not in stack.pids("redis") and stack.all_run(), what="it runs again, as a replica")
            for number, each in enumerate(accepted):
                assert api.outcome(each)["output"] == f"before {number}"
        stack.stop()

        # The replicas are there without being asked for.
        stack.start(*OPTIONS[:-1], durability="second")
        assert len(stack.pids("redis")) == 7
        with connected(stack.port) as api:
            for number, each in enumerate(accepted):
                assert api.outcome(each)["output"] == f"before {number}"
        stack.stop()
    finally:
        stack.kill()
