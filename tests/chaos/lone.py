"""Workers without a supervisor, on a Redis that belongs to the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from redis import Redis

from tasks.fleet.registry_reader import Fleet
from tests.configs import uncached
from tests.e2e.stack import ROOT
from tests.shards import inherited_environment
from tests.waiting import wait_until

LEASE_TTL_S = 1.0


class LoneWorkers:
    """Each worker is started, killed and ended by the test; `end` kills the rest."""

    def __init__(self, folder: Path, config: str, url: str, redis: Redis, **settings: object) -> None:
        self._config = folder / "bunch.toml"
        self._config.write_text(uncached(config))
        given = {"redis_url": url, "state_dir": folder / "var", "lease_ttl_ms": int(LEASE_TTL_S * 1000)} | settings
        self._environment = inherited_environment()
        self._environment |= {f"BUNCH_{name.upper()}": str(value) for name, value in given.items()}
        self._fleet = Fleet(redis, lease_ttl_s=LEASE_TTL_S)
        self.log = folder / "workers.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "worker", f"--config={self._config}", f"--name=lone{self._started}"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def start_ready(self) -> subprocess.Popen[bytes]:
        process = self.start()
        wait_until(lambda: process in self.ready(), what="the worker is ready")
        return process

    def ready(self) -> list[subprocess.Popen[bytes]]:
        """The workers that are ready."""
        pids = {row.pid for row in self._fleet.healthy() if all(each.state == "ready" for each in row.models)}
        return [each for each in self._processes if each.pid in pids and each.poll() is None]

    def states(self) -> list[str]:
        """The state that each worker reports."""
        return [row.state for row in self._fleet.workers()]

    def kill(self, victim: subprocess.Popen[bytes]) -> None:
        victim.kill()
        victim.wait()
        self._processes.remove(victim)

    def end(self) -> None:
        for each in self._processes:
            # A worker that the test has stopped takes no other signal before this one, except SIGKILL.
            each.send_signal(signal.SIGCONT) if each.poll() is None else None
            each.kill()
            each.wait()
