"""Real Celery worker processes: ours over a private Valkey, and plain ones without Bunch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from celery import Celery
from redis import Redis

from config.keys import TASK_NAME
from tasks.fleet.registry_reader import Fleet, ready_models
from tests.configs import uncached
from tests.shards import inherited_environment, redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 160.0

ECHO = '[models.echo]\nsource = "workers.models.echo:Echo"\n'
MOODY = '[models.moody]\nsource = "tests.models:Moody"\npolicy = "idle"\nmax_attempts = 1\ntimeout_ms = 30000\n'


class CeleryProcess:
    """`python -m celery …` until `stop`, which is a warm shutdown."""

    def __init__(self, folder: Path, name: str, arguments: Iterable[str], **environment: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "celery", *arguments]
        inherited = inherited_environment()
        self._environment = inherited | environment
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def stop(self) -> int:
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def bunch_worker(
    folder: Path, valkey: PrivateValkey, models: str, name: str = "bunch", **settings: object
) -> CeleryProcess:
    """Our worker over `models`, the text of a bunch.toml. `start` it, then `wait_for_models`."""
    config = folder / f"{name}.toml"
    config.write_text(uncached(models))
    named = {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
    return CeleryProcess(
        folder,
        name,
        ("-A", "workers.app", "worker", "-P", "threads", "-c", "1", "-n", f"{name}@here", *_ALONE),
        **redis_environment(valkey.url),
        BUNCH_CONFIG=str(config),
        BUNCH_STATE_DIR=str(folder / "var"),
        **named,
    )


def plain_worker(folder: Path, url: str, name: str = "plain", *arguments: str, **environment: str) -> CeleryProcess:
    """A worker of `tests.integration.celery_plain`, without Bunch."""
    return CeleryProcess(
        folder,
        name,
        (
            "-A",
            "tests.integration.celery_plain",
            "worker",
            "-P",
            "threads",
            "-c",
            "2",
            "-n",
            f"{name}@here",
            *arguments,
        ),
        PLAIN_URL=url,
        **environment,
    )


_ALONE = ("--without-gossip", "--without-mingle", "--loglevel=INFO")


def wait_for_models(redis: Redis, *models: str) -> None:
    fleet = Fleet(redis)
    wait_until(lambda: set(models) <= ready_models(fleet.healthy()), f"{models} are ready")


def plain_client(url: str, **settings: Any) -> Celery:
    """A plain Celery app of another program: a broker, a backend, defaults for the rest."""
    app = Celery("somebody", broker=url, backend=url, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, **settings)
    return app


def infer(app: Celery, *input: Any, queue: str = "bunch.echo.paid", **options: Any) -> Any:
    """A signature of `bunch.infer` from a client that has no such task."""
    return app.signature(TASK_NAME, args=input, options={"queue": queue, **options})


def close_client(app: Celery) -> None:
    """Close the client without the unsubscribes that its results would send to a stopped server when collected."""
    consumer = app.backend.result_consumer
    consumer.stop()
    consumer.subscribed_to.clear()
    app.close()
