"""The command line of each role, the same in `up`, in the foreground and in a container."""

from __future__ import annotations

import sys
from pathlib import Path

from config.environ import ROOT
from config.model_files.schemes import scheme_of
from config.secrets.private_files import kept_secret, make_private
from config.settings import Settings, is_loopback

# -P: the folder from which somebody starts us may have its own `tasks.py` and `config.py`.
_PYTHON = (sys.executable, "-P")
_FLOWER_SAVES_MS = 60_000
FLOWER_USER = "bunch"


def worker(settings: Settings, name: str, *, watched: bool = False) -> tuple[str, ...]:
    """The command of a worker. One thread is enough for Celery's own tasks; batches run in the executors.

    `watched`: Flower runs, so events are sent from the start.
    """
    events = ("--task-events",) if watched else ()
    return _celery("workers.app", "worker", name, settings, "--pool=threads", "--concurrency=1", *events)


def ops(settings: Settings, name: str = "ops") -> tuple[str, ...]:
    return _celery("tasks.app", "worker", name, settings, "--queues=bunch.ops", "--pool=threads", "--concurrency=2")


def web(settings: Settings) -> tuple[str, ...]:
    """The command of the frontend. `config/gunicorn.py` sets host, port and worker count from the settings."""
    collocated = settings.mode == "collocated"
    return (
        *(*_PYTHON, "-m", "gunicorn"),
        f"--config={ROOT / 'config' / 'gunicorn.py'}",
        "cli.collocated.app:application" if collocated else "webapp.app:application",
    )


def grpc() -> tuple[str, ...]:
    """The command of the gRPC frontend."""
    return (*_PYTHON, "-m", "webapp.grpc")


def flower(settings: Settings, port: int | None = None) -> tuple[str, ...]:
    return (
        *(*_PYTHON, "-m", "cli.run.guarded_flower", "--app=tasks.app", "flower"),
        f"--address={settings.flower_host}",
        f"--port={settings.flower_port if port is None else port}",
        f"--max-tasks={settings.flower_max_tasks}",
        # A worker that has been gone for an hour does not come back.
        "--purge-offline-workers=3600",
        *_persistence(settings),
    )


def _persistence(settings: Settings) -> tuple[str, ...]:
    """Options that keep Flower's data across restarts: it is written each minute and at the stop, and read at the
    start.
    """
    if not settings.flower_persistent:
        return ("--persistent=False",)
    folder = Path(settings.state_dir).resolve() / "flower"
    make_private(folder)
    return ("--persistent=True", f"--db={folder / 'flower'}", f"--state-save-interval={_FLOWER_SAVES_MS}")


def flower_password(settings: Settings) -> Path:
    """The file with the password of `FLOWER_USER`, used with auth on when none is configured."""
    return Path(settings.state_dir).resolve() / "flower.password"


def flower_environment(settings: Settings) -> dict[str, str]:
    """Flower's secrets, in the environment: `ps` shows a password on a command line to everyone."""
    if settings.flower_basic_auth:
        return {"FLOWER_BASIC_AUTH": settings.flower_basic_auth}
    if settings.auth != "off":
        # With authentication on, not everybody on this machine may see the requests.
        return {"FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{kept_secret(flower_password(settings)).decode()}"}
    if is_loopback(settings.flower_host):
        # Flower refuses its API to callers it doesn't know. On loopback they may read; what changes
        # anything stays off, since any web page can make a browser POST to 127.0.0.1.
        return {"FLOWER_UNAUTHENTICATED_API": "true", "FLOWER_READ_ONLY": "true"}
    return {}


def asked_for_by_headers(settings: Settings) -> frozenset[str]:
    """The variables that frontends themselves need: those of APIs that they may call directly."""
    direct = [model for model in settings.models.values() if model.direct]
    return frozenset().union(*(scheme_of(model.source).variables(model.options) for model in direct))


def _celery(app: str, command: str, name: str, settings: Settings, *options: str) -> tuple[str, ...]:
    node = name if "@" in name else f"{name}@%h"
    return (
        # Celery's banner is twenty lines without information about Bunch, and not JSON.
        *(*_PYTHON, "-m", "celery", "--quiet", f"--app={app}", command, f"--hostname={node}"),
        # Gossip and mingle are for workers that elect and share state; ours use Redis for that.
        *("--without-gossip", "--without-mingle", f"--loglevel={settings.log_level}"),
        *options,
    )
