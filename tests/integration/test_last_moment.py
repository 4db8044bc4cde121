"""A frontend whose time for draining runs out says so to those who still wait, instead of cutting them off."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cli.supervisor.ports import free_port
from cli.supervisor.probes import get
from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENCE_S, ROOT
from tests.shards import depth_of, inherited_environment, note_load, redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

# Nobody serves it: who asks waits.
CONFIG = """\
[models.echo]
source = "workers.models.echo:Echo"
"""


@pytest.fixture
def api(tmp_path: Path, valkey: PrivateValkey, redis: Redis) -> Iterator[Api]:
    port = free_port()
    with connected(port) as api:
        yield api


@pytest.fixture
def frontend(api: Api, tmp_path: Path, valkey: PrivateValkey) -> Iterator[subprocess.Popen[bytes]]:
    config = tmp_path / "bunch.toml"
    config.write_text(CONFIG)
    settings = {
        "HTTP_PORT": api.port,
        "WEB_WORKERS": 1,
        "STATE_DIR": tmp_path / "var",
        "REQUEST_TIMEOUT_MS": 60_000,
        "QUEUE_TIMEOUT_MS": 60_000,
        # Who still waits is told a quarter of it before its end, and a second at most.
        "GRACEFUL_TIMEOUT_MS": 4_000,
    }
    inherited = inherited_environment()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "web", f"--config={config}"],
        cwd=ROOT,
        env=inherited | redis_environment(valkey.url) | {f"BUNCH_{key}": str(value) for key, value in settings.items()},
    )
    try:
        wait_until(lambda: get("127.0.0.1", api.port, "/healthz")[0] == 200, what="it answers")
        yield process
    finally:
        process.kill()
        process.wait()


def test_who_still_waits_is_told(frontend: subprocess.Popen[bytes], api: Api, redis: Redis) -> None:
    # Some worker has had the model: else nobody would be let wait for it.
    note_load(redis, "echo")
    waiting = [api.soon(n, "echo") for n in range(5)]
    bulk = api._pool.submit(api.post, "/v1/inference/bulk", {"inputs": [5, 6, 7], "model": "echo"})
    wait_until(lambda: depth_of(redis, "echo") == 8, what="all are queued")

    frontend.send_signal(signal.SIGTERM)

    answers: list[Answer] = [each.result(PATIENCE_S) for each in (*waiting, bulk)]
    for answer in answers:
        assert (answer.status, answer.error) == (503, "SHUTTING_DOWN")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["connection"] == "close"
    assert frontend.wait(PATIENCE_S) == 0
