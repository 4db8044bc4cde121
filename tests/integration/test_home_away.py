"""The home of a cluster goes, and hangs, under a real frontend and a real worker: they go on, and say so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.supervisor.ports import free_port
from cli.supervisor.probes import get
from tests.clusters import Clustered
from tests.integration.celery_harness import ROOT
from tests.shards import inherited_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

LEASE_TTL_S = 1.0


class Served:
    """A frontend and a worker on a cluster, and the home."""

    def __init__(self, folder: Path, cluster: Clustered, home: PrivateValkey) -> None:
        self.home = home
        self.port = free_port()
        config = folder / "bunch.toml"
        config.write_text('[models.echo]\nsource = "workers.models.echo:Echo"\ncache = false\n')
        given = {
            "REDIS_URL": cluster.url,
            "BROKER_URL": home.url,
            "SHARDS": 4,
            "HTTP_PORT": self.port,
            "WEB_WORKERS": 1,
            "LEASE_TTL_MS": int(LEASE_TTL_S * 1000),
            "STATE_DIR": folder / "var",
        }
        environment = inherited_environment() | {f"BUNCH_{key}": str(value) for key, value in given.items()}
        self._processes = [
            subprocess.Popen([sys.executable, "manage.py", role, f"--config={config}"], cwd=ROOT, env=environment)
            for role in ("web", "worker")
        ]

    def is_ready(self) -> bool:
        return get("127.0.0.1", self.port, "/readyz")[0] == 200

    def is_well(self) -> bool:
        """Return whether the page of its health comes, in the short time of a probe, and has nothing to complain of."""
        status, body = get("127.0.0.1", self.port, "/internal/health")
        about = json.loads(body) if status else {}
        return about.get("status") == "healthy" and about["unavailable_shards"] == []

    def stop(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    cluster, home = Clustered().start(), PrivateValkey()
    home.start()
    each = Served(tmp_path_factory.mktemp("served"), cluster, home)
    try:
        wait_until(each.is_ready, what="a frontend and a worker are ready")
        yield each
    finally:
        each.stop()
        cluster.stop()
        home.stop()


def stays_ready(served: Served) -> bool:
    """Return whether it is ready once what was read before, and the last heartbeats, are too old to count."""
    time.sleep(2 * LEASE_TTL_S)
    # A busy machine may miss one; what counts is that it does not stay away.
    return bool(wait_until(served.is_ready, what="it is ready without its home", patience_s=20.0))


def test_a_frontend_is_ready_while_its_home_is_gone_and_while_it_hangs(served: Served) -> None:
    served.home.kill()
    try:
        assert stays_ready(served)
    finally:
        served.home.start()
    wait_until(served.is_well, what="the page is back")
    os.kill(served.home.pid, signal.SIGSTOP)
    try:
        assert stays_ready(served)
    finally:
        os.kill(served.home.pid, signal.SIGCONT)
    wait_until(served.is_well, what="the page is back")
