"""Bunch itself, as `manage.py up` starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.shapes import input_output
from tests.benchmarks.system import Model, System
from tests.benchmarks.verify import NotReadyError
from tests.configs import uncached
from tests.shards import inherited_environment

ROOT = Path(__file__).parents[2]

NOOP = """
default_model = "noop"

[models.noop]
source = "workers.models.echo:Echo"
max_batch_size = 64
"""

_SIMULATED = """
default_model = "sim50"

[models.sim50]
source = "workers.models.simulated:Simulated"
max_batch_size = 64
timeout_ms = {timeout_ms}

[models.sim50.options]
batch_ms = {batch_ms}
item_ms = 0
"""


def _config_of(model: Model) -> str:
    return NOOP if model == "noop" else _SIMULATED.format(timeout_ms=3000, batch_ms=50)


# Limits are checked, and never reached.
OUT_OF_REACH = {"BUNCH_PAID_RPM": "1000000", "BUNCH_ENTERPRISE_RPM": "1000000", "BUNCH_BURST_MS": "900000"}
WITH_KEYS = OUT_OF_REACH | {"BUNCH_AUTH": "keys"}
WITH_LEDGER = {"BUNCH_LEDGER_RETENTION_DAYS": "1"}
_PATIENCE_S = 30.0


class Bunch(System):
    """One web process, one worker, one executor, an embedded Valkey.

    On two cores, which the load generator shares, a second web process costs more than it gains: 9,680 requests/s
    against 10,970 (no-op model, 256 connections, two rounds in turns).

    Without a cache, as all the others are.
    """

    name = "bunch"
    shape = input_output("/v1/inference")
    start_limit_s = 120.0
    # More of them for machines with more cores.
    web_workers = 1
    workers = 1

    def launch(self, model: Model) -> None:
        self.launch_with(_config_of(model), {})

    def start_slow(self, batch_ms: int) -> None:
        """Serve a model that takes `batch_ms` a batch, with every time limit above it."""
        config = _SIMULATED.format(timeout_ms=2 * batch_ms, batch_ms=batch_ms)
        limit = str(3 * batch_ms)
        self.open_run()
        self.launch_with(config, {"BUNCH_REQUEST_TIMEOUT_MS": limit, "BUNCH_QUEUE_TIMEOUT_MS": limit})
        self.wait_ready()

    def start_simulated(self, *, max_batch_size: int, batch_ms: float, item_ms: float) -> None:
        """Serve a model of that speed, with the limits that a server has by default."""
        self.open_run()
        self.launch_with(
            f"""
[models.sim]
source = "workers.models.simulated:Simulated"
max_batch_size = {max_batch_size}
options = {{ batch_ms = {batch_ms}, item_ms = {item_ms} }}
""",
            {},
        )
        self.wait_ready()

    def layout(self) -> tuple[str, ...]:
        """The options that say which processes run."""
        return ("--web-workers", str(self.web_workers), "--workers", str(self.workers))

    def launch_with(self, config: str, settings: Mapping[str, str], *, flower: bool = False) -> None:
        path = self.folder / "bunch.toml"
        path.write_text(uncached(config))
        self.processes.start(
            "up",
            [
                *(sys.executable, "manage.py", "up", "--port", str(self.port), "--config", str(path)),
                *self.layout(),
                *(() if flower else ("--no-flower",)),
            ],
            cwd=ROOT,
            env=self.environment() | dict(settings),
        )

    def environment(self) -> dict[str, str]:
        """The environment of its processes, and of commands that must find them."""
        inherited = inherited_environment()
        return inherited | {"BUNCH_STATE_DIR": str(self.folder / "state")}

    def wait_ready(self) -> None:
        """Wait until `/readyz` answers 200 and lists no missing model: Redis is up and each model has a healthy
        worker.
        """
        until = time.monotonic() + self.start_limit_s
        last: object = None
        while time.monotonic() < until:
            if ended := self.processes.dead():
                raise NotReadyError(f"ended while starting: {', '.join(ended)}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5.0) as answer:
                    last = json.load(answer)["unavailable_models"]
                if not last:
                    return
            except (OSError, urllib.error.HTTPError) as error:
                last = error
            time.sleep(0.1)
        raise NotReadyError(f"/readyz not 200 within {self.start_limit_s:.0f} s; the last try: {last!r}")

    def status(self) -> dict[str, Any]:
        """`manage.py status --json`: processes, url, redis_url."""
        done = subprocess.run(
            [sys.executable, "manage.py", "status", "--json"],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=30.0,
        )
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def redis_url(self) -> str:
        return str(self.status()["redis_url"])

    def web_pids(self) -> list[int]:
        return [int(process["pid"]) for process in self.status()["processes"] if process["role"] == "web"]

    def make_key(self) -> str:
        """Create an API key of the tier `paid`, and wait until every frontend knows it."""
        command = [sys.executable, "manage.py", "keys", "create", "--tier", "paid", "--json"]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=True, timeout=_PATIENCE_S
        )
        secret = str(json.loads(done.stdout)["secret"])
        until = time.monotonic() + _PATIENCE_S
        # All web processes, whichever answers.
        while not all(self._knows(secret) for _ in range(20)):
            if time.monotonic() > until:
                raise NotReadyError("the key never became known")
            time.sleep(0.5)
        return secret

    def _knows(self, secret: str) -> bool:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/inference", b'{"input": 1}', headers)
        try:
            with urllib.request.urlopen(request, timeout=10):
                return True
        except urllib.error.HTTPError:
            return False


class CollocatedBunch(Bunch):
    """Bunch with frontend and executor loop in one process, and the queue in its memory, as all rivals have it."""

    name = "bunch_collocated"

    def layout(self) -> tuple[str, ...]:
        return ("--collocated",)


class GuardedBunch(Bunch):
    """Bunch with the settings of a public server: API keys, limits, a ledger in SQLite. The rivals have none of
    these.
    """

    name = "bunch_guarded"

    def launch(self, model: Model) -> None:
        self.launch_with(_config_of(model), WITH_KEYS | WITH_LEDGER)

    def wait_ready(self) -> None:
        super().wait_ready()
        self.shape = replace(Bunch.shape, credential=self.make_key())
