"""The processes of all roles and the differences in their configurations, for `workers` and `check`."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cli.base import as_written, table
from cli.supervisor import state
from config.errors import Problem
from config.settings import Settings

if TYPE_CHECKING:
    from redis import Redis
    from rich.console import RenderableType

    from tasks.fleet.process_register import RoleRow


_TIMEOUT_S = 2.0


def rows(redis: Redis, lease_ttl_s: float) -> list[dict[str, Any]]:
    """The rows of `workers --all --json`."""
    from tasks.fleet.process_register import Roles

    roles = Roles(redis, lease_ttl_s=lease_ttl_s)
    return [{**msgspec.to_builtins(row), "silent": roles.is_silent(row)} for row in roles.rows()]


def shown(redis: Redis, lease_ttl_s: float) -> RenderableType:
    from rich.console import Group

    from tasks.fleet.process_register import Roles

    found = Roles(redis, lease_ttl_s=lease_ttl_s)
    listed = found.rows()
    processes = table(
        listed,
        [
            ("role", lambda row: row.role),
            ("name", lambda row: row.name),
            ("pid", lambda row: str(row.pid)),
            ("state", lambda row: "silent" if found.is_silent(row) else "alive"),
            ("up s", lambda row: max(0, int(time.time() - row.started_at))),
            ("version", lambda row: row.version),
            ("memory MiB", lambda row: row.usage.memory_bytes / 1_048_576),
            ("executors MiB", lambda row: sum(each.memory_bytes for each in row.executors.values()) / 1_048_576),
            ("open files", lambda row: row.usage.fds),
        ],
        empty="no process has reported",
    )
    return Group(processes, *remarks(listed))


def remarks(listed: list[RoleRow]) -> list[RenderableType]:
    """The differences between the processes, as text."""
    from tasks.fleet.process_register import differences

    return [as_written(f"\n{each}") for each in differences(listed)]


def differs_from_here(settings: Settings) -> list[Problem]:
    """Differences between the running processes and the settings of this file; empty when no process can be asked."""
    from redis.exceptions import RedisError

    from config.redis import connect
    from tasks.fleet.process_register import RoleRow, Roles, differences, fingerprints

    running = state.read(Path(settings.state_dir))
    url = settings.home_url or (running.redis_url if running else None)
    if not url:
        return []
    with contextlib.suppress(RedisError, OSError, ValueError):
        redis = connect(url, timeout_s=_TIMEOUT_S, connect_timeout_s=_TIMEOUT_S)
        listed = Roles(redis).rows()
        if listed:
            here = RoleRow("", "", "this file", socket.gethostname(), os.getpid(), time.time())
            here = msgspec.structs.replace(here, models=fingerprints(settings.models))
            return [Problem("bunch.toml", settings.config_file, each) for each in differences([*listed, here])]
    return []
