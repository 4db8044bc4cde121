"""`up --sentinel`: a laptop on which Redis may be lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.client import connected
from tests.e2e.stack import Stack
from tests.waiting import wait_until

MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\n'


def test_its_primary_may_be_killed(tmp_path: Path) -> None:
    stack = Stack(tmp_path, MODEL)
    try:
        # However long the failover takes here.
        patient = {"failover_wait_ms": 25_000, "queue_timeout_ms": 30_000}
        stack.start("--web-workers=1", "--no-flower", "--sentinel", durability="replica", **patient)
        names = [row.name for row in stack.rows() if row.role == "redis"]
        assert names == ["valkey", "valkey-2", "sentinel-1", "sentinel-2", "sentinel-3"]
        assert stack.redis_url.startswith("sentinel://")
        with connected(stack.port) as api:
            accepted = api.later("before")
            primary = next(row.pid for row in stack.rows() if row.name == "valkey")
            assert primary is not None
            os.kill(primary, signal.SIGKILL)
            assert api.infer("meanwhile").json["output"] == "meanwhile"
            # Until the old primary is a replica nobody is left who could confirm a result.
            assert api.get(f"/v1/result/{accepted}?wait_ms=5000").status in {200, 503}
            wait_until(stack.all_run, what="the old primary runs again")
            with stack.redis() as redis:
                wait_until(lambda: redis.execute_command("ROLE")[2], what="and follows the new one")
            assert api.result(accepted)["output"] == "before"
            assert api.infer("after").json["output"] == "after"
        stack.stop()
    finally:
        stack.kill()
