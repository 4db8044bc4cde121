"""The register of processes: what every role reports about itself, so that a missing or different one is noticed.

    web, worker, ops ──once a second──▶ bunch:role:<id>, bunch:roles ──▶ page, `workers`, `check`, metrics, alerts

Workers also have a register of their own, which leases depend on; nothing depends on this one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import msgspec
import psutil
from redis import Redis

from config.keys import Shard
from config.settings import ModelSettings
from config.version import VERSION

# How long a silent process stays listed; one that leaves by itself is removed at once.
KEPT_MS = 60_000
BEAT_EVERY_S = 1.0
# Reading what a process uses takes up to three system calls.
_MEASURED_EVERY_S = 10.0


class Usage(msgspec.Struct, frozen=True):
    """Resources that one process uses: CPU seconds since its start, bytes of memory, open file descriptors."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    fds: int = 0


class RoleRow(msgspec.Struct, frozen=True):
    """One process. `models` is the fingerprint of each model's settings; `executors` is the usage of a worker's
    children.

    The reader fills in `age_ms`, the time since the last beat.
    """

    id: str
    role: str
    name: str
    hostname: str
    pid: int
    started_at: float
    version: str = VERSION
    python: str = ""
    models: dict[str, str] = {}
    usage: Usage = Usage()
    executors: dict[str, Usage] = {}
    age_ms: int = 0


def fingerprint(model: ModelSettings) -> str:
    """A hash of a model's settings that does not depend on their order or file."""
    document = msgspec.json.encode(msgspec.to_builtins(model, order="sorted"), order="sorted")
    return hashlib.sha256(document).hexdigest()[:8]


def fingerprints(models: Mapping[str, ModelSettings]) -> dict[str, str]:
    return {name: fingerprint(model) for name, model in sorted(models.items())}


class Presence:
    """The entry of one process; used by one thread.

    Args:
        models: returns the models that this process is configured to serve.
        children: returns the pids of its executors, by name.
    """

    def __init__(
        self,
        redis: Redis,
        role: str,
        models: Callable[[], Mapping[str, ModelSettings]],
        name: Callable[[], str] = lambda: "",
        children: Callable[[], Mapping[str, int]] = dict,
        shard: Shard | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._role = role
        self._models = models
        self._name = name
        self._children = children
        self._keys = shard or Shard()
        self._clock = clock
        self._hostname = socket.gethostname()
        self._pid = os.getpid()
        self._id = f"{role}-{self._hostname}-{self._pid}"
        self._started_at = time.time()
        self._measured_at = float("-inf")
        self._usage = Usage()
        self._executors: dict[str, Usage] = {}
        self._known: tuple[Mapping[str, ModelSettings], dict[str, str]] = ({}, {})

    def beat(self) -> None:
        """Report this process. Raises RedisError."""
        now = self._clock()
        if now - self._measured_at >= _MEASURED_EVERY_S:
            self._measured_at = now
            self._usage = usage_of(self._pid)
            self._executors = {name: usage_of(pid) for name, pid in self._children().items()}
        models = dict(self._models())
        if models != self._known[0]:
            self._known = (models, fingerprints(models))
        row = RoleRow(
            self._id,
            self._role,
            self._name() or f"{self._role}@{self._hostname}",
            self._hostname,
            self._pid,
            self._started_at,
            python=platform.python_version(),
            models=self._known[1],
            usage=self._usage,
            executors=self._executors,
        )
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(self._keys.role(self._id), msgspec.json.encode(row), px=KEPT_MS)
        pipeline.sadd(self._keys.roles(), self._id)
        # Expires, so that nothing of a stack that is gone stays behind.
        pipeline.pexpire(self._keys.roles(), KEPT_MS)
        pipeline.execute()

    def leave(self) -> None:
        """Remove the entry. Raises RedisError."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.srem(self._keys.roles(), self._id)
        pipeline.delete(self._keys.role(self._id))
        pipeline.execute()


def usage_of(pid: int) -> Usage:
    """The usage of a process; all zeros for one that is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return Usage(round(times.user + times.system, 2), process.memory_info().rss, process.num_fds())
    except psutil.Error:
        return Usage()


class Roles:
    """Reads the register, in two round trips."""

    def __init__(self, redis: Redis, shard: Shard | None = None, lease_ttl_s: float = 5.0) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._ttl_ms = lease_ttl_s * 1000

    def rows(self) -> list[RoleRow]:
        """The processes heard from in the last minute, by role and name. Raises RedisError."""
        ids = sorted(each.decode() for each in cast("set[bytes]", self._redis.smembers(self._keys.roles())))
        if not ids:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for each in ids:
            pipeline.get(self._keys.role(each))
            pipeline.pttl(self._keys.role(each))
        told = cast("list[bytes | int | None]", pipeline.execute())
        rows, gone = [], []
        for name, raw, left_ms in zip(ids, told[::2], told[1::2], strict=True):
            if isinstance(raw, bytes) and isinstance(left_ms, int):
                row = msgspec.json.decode(raw, type=RoleRow)
                rows.append(msgspec.structs.replace(row, age_ms=max(0, KEPT_MS - left_ms)))
            else:
                gone.append(name)
        if gone:
            self._redis.srem(self._keys.roles(), *gone)
        return sorted(rows, key=lambda row: (row.role, row.name, row.pid))

    def is_silent(self, row: RoleRow) -> bool:
        return row.age_ms > self._ttl_ms


def differences(rows: Iterable[RoleRow]) -> list[str]:
    """A sentence for each model that is not configured alike everywhere, and one for different versions of Bunch."""
    rows = list(rows)
    found = []
    for model in sorted({name for row in rows for name in row.models}):
        kinds: dict[str, list[str]] = {}
        for row in rows:
            kinds.setdefault(row.models.get(model, ""), []).append(row.name)
        if len(kinds) > 1:
            found.append(f"{model} is configured differently: {_named(kinds, 'without it')}")
    versions: dict[str, list[str]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row.name)
    if len(versions) > 1:
        found.append(f"different versions of Bunch run: {_named(versions, 'unknown')}")
    return found


def _named(kinds: Mapping[str, list[str]], none: str) -> str:
    # The rarest last, as it is the one that differs.
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{kind or none} on {', '.join(sorted(set(names)))}" for kind, names in ordered)
