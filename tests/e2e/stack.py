"""The whole of Bunch as real processes: `manage.py up` in a folder of its own, on free ports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

import psutil
from redis import Redis

from cli.supervisor import state
from config.redis import connect
from tests.configs import uncached
from tests.shards import inherited_environment
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
# Callers who wait for long enough on whatever machine, unless they say otherwise.
PATIENT = {"queue_timeout_ms": 60_000, "request_timeout_ms": 60_000}

MODELS = """\
default_model = "echo"

[models.echo]
source = "workers.models.echo:Echo"

[models.shout]
source = "workers.models.shout:batchstring"

[models.simulated]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 50, item_ms = 0.1 }

[models.slow]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 800, item_ms = 0 }
max_batch_size = 1

[models.narrow]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 500, item_ms = 0 }
max_batch_size = 1
max_queue_depth = 2

# What other policies have learnt says when a batch is claimed ahead of its time, and what is behind a gate must not be.
[models.moody]
source = "tests.models:Moody"
policy = "idle"
timeout_ms = 120000

# Each worker counts for itself.
[models.counting]
source = "tests.models:Counting"
policy = "idle"
timeout_ms = 120000
cache = true

# What it does not declare does not reach it.
[models.picky]
source = "workers.models.echo:Echo"
parameters_schema = { additionalProperties = false, properties = { top = { type = "integer", minimum = 1 } } }

[models.picky.input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string", minLength = 1, maxLength = 20 }
properties.tags = { type = "array", maxItems = 3, items = { "$ref" = "#/$defs/tag" } }
"$defs".tag = { type = "string", pattern = "^[a-z]+$" }

[models.tensors]
source = "workers.models.echo:Echo"
inputs = [{ name = "a", datatype = "FP32", shape = [2] }, { name = "b", datatype = "BYTES" }]
outputs = [{ name = "a", datatype = "FP32", shape = [2] }, { name = "b", datatype = "BYTES" }]

# Four requests are one batch, however far apart they arrive.
[models.quartet]
source = "tests.models:Moody"
policy = "fixed"
max_batch_size = 4
max_wait_ms = 4000
"""


class Stack:
    """A stack. `start` returns when it answers; `stop` returns when nothing of it is left, or raises."""

    def __init__(
        self, folder: Path, models: str = MODELS, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._cwd = cwd
        self.config_file = folder / "bunch.toml"
        self.config_file.write_text(uncached(models))
        self.state_dir = folder / "var"
        self._output = folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = inherited_environment()
        self._environment |= environment or {}
        self._environment["BUNCH_STATE_DIR"] = str(self.state_dir)
        self._environment["BUNCH_CONFIG"] = str(self.config_file)
        self.url = self.redis_url = ""

    def start(self, *options: str, **settings: object) -> Self:
        self._environment |= {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, ROOT / "manage.py", "up", "--port=0", f"--config={self.config_file}", *options],
                cwd=self._cwd, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(self._is_ready, what="the stack is ready")
        status = json.loads(self.manage("status", "--json").stdout)
        self.url, self.redis_url = status["url"], status["redis_url"]
        return self

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def rows(self) -> tuple[state.ProcessRow, ...]:
        """Its processes, as `manage.py status` shows them."""
        status = state.read(self.state_dir)
        return status.processes if status else ()

    def pids(self, role: str) -> list[int]:
        return [row.pid for row in self.rows() if row.role == role and row.pid]

    def all_run(self) -> bool:
        return all(row.state == "running" for row in self.rows())

    def frontends(self) -> list[psutil.Process]:
        """The processes that serve HTTP, without gunicorn's master."""
        (master,) = self.pids("web")
        return list(psutil.Process(master).children())

    def redis(self) -> Redis:
        return connect(self.redis_url)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def spawn(
        self, *arguments: str, stdout: int | IO[bytes] = subprocess.DEVNULL, **settings: object
    ) -> subprocess.Popen[bytes]:
        """Start another `manage.py` command beside the stack; the caller ends it."""
        extra = {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
        return subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT, env=self._environment | extra, stdout=stdout, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def logs(self) -> str:
        """All output of its processes."""
        return "\n".join(f"--- {name}\n{text}" for name, text in self._outputs())

    def last_logs(self) -> str:
        """The end of each output, for a test that failed."""
        return "\n".join(f"--- {name}\n{text[-6000:]}" for name, text in self._outputs())

    def _outputs(self) -> Iterator[tuple[str, str]]:
        for each in (self._output, *sorted((self.state_dir / "log").glob("*.log"))):
            yield each.name, each.read_text(errors="replace")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM, then look for processes that it should have ended."""
        if self._process is None:
            return
        below = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        try:
            self._process.terminate()
            code = self._process.wait(PATIENCE_S)
            _, alive = psutil.wait_procs(below, timeout=60)
        finally:
            self.kill()
        for each in alive:
            each.kill()
        assert not alive, f"left running: {alive}\n{self.last_logs()}"
        assert code == 0, self.last_logs()
        left = {each.name for each in self.state_dir.iterdir()}
        left -= {"log", "health", "valkey", "flower", "message.key", "flower.password", "up.lock", "bunch.db"}
        left -= {"valkey-2", "sentinel", "cluster.id", *(f"node-{number}" for number in range(1, 7))}
        assert not left, f"left in {self.state_dir}: {left}"

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.last_logs()
        return "ready" in self._output.read_text().splitlines()
