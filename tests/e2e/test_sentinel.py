"""`up --sentinel`: a laptop on which Redis may be lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

TRIES = 3
MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\n'


def test_its_primary_may_be_killed_and_the_next_start_begins_with_the_last_one(tmp_path: Path) -> None:
    for turn in range(TRIES):
        folder = tmp_path / str(turn)
        folder.mkdir()
        stack = Stack(folder, MODEL)
        try:
            lose_primaries(stack)
        except AssertionError:
            if lost_no_other(stack):
                raise
        else:
            return
    pytest.fail("each time the machine stood still, and the new primary was taken for dead too")


def lost_no_other(stack: Stack) -> bool:
    """Return whether there was one failover in each start. A second one, on a machine that stands still, may go back to
    a server that has heard of nothing yet.
    """
    logs = (stack.state_dir / "log").glob("sentinel-*.log*")
    return all(each.read_text(errors="replace").count("+switch-master") <= 1 for each in logs)


def lose_primaries(stack: Stack) -> None:
    options = ("--web-workers=1", "--no-flower", "--sentinel")
    try:
        # However long the failover takes here.
        patient = {"failover_wait_ms": 25_000, **PATIENT}
        stack.start(*options, durability="replica", **patient)
        assert names(stack) == ["valkey", "valkey-2", "sentinel-1", "sentinel-2", "sentinel-3"]
        assert stack.redis_url.startswith("sentinel://")
        with connected(stack.port) as api:
            accepted = api.later("before")
            assert api.outcome(accepted)["output"] == "before"
            old = kill(stack, "valkey")
            assert api.infer("meanwhile").json["output"] == "meanwhile"
        with stack.redis() as redis:
            # Only the new primary has it: the old one is down, or has not been told yet whom to follow.
            redis.set("written", "by then")
            assert redis.config_get("port")["port"] != old
        stack.stop()

        stack.start(*options)
        assert names(stack)[:2] == ["valkey-2", "valkey"]
        with connected(stack.port) as api:
            with stack.redis() as redis:
                assert redis.get("written") == b"by then"
            assert api.outcome(accepted)["output"] == "before"
            old = kill(stack, "valkey-2")
            assert api.infer("again").json["output"] == "again"
            # Until the old primary is a replica nobody is left who could confirm a result.
            assert api.get(f"/v1/result/{accepted}?wait_ms=5000").status in {200, 503}
            wait_until(stack.all_run, what="the old primary runs again")
            with stack.redis() as redis:
                wait_until(lambda: redis.execute_command("ROLE")[2], what="and follows the new one")
                assert redis.config_get("port")["port"] != old
                assert redis.get("written") == b"by then"
            assert api.outcome(accepted)["output"] == "before"
            assert api.infer("after").json["output"] == "after"
        stack.stop()
    finally:
        stack.kill()


def names(stack: Stack) -> list[str]:
    return [row.name for row in stack.rows() if row.role == "redis"]


def kill(stack: Stack, name: str) -> str:
    """Kill the primary, which is the server of this name. Returns its port."""
    with stack.redis() as redis:
        server = redis.info("server")
    pid = next(row.pid for row in stack.rows() if row.name == name)
    assert pid == server["process_id"]
    os.kill(pid, signal.SIGKILL)
    return str(server["tcp_port"])
