"""Metrics of processes, of their Redis, and of versions: those that do not need a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from config.shards import Place, Places
from tasks.fleet.all_places import AllPlaces
from tasks.fleet.process_register import RoleRow, Roles, Usage
from tasks.observability import metrics

_ROLES = ("ops", "web", "worker")


def machine_metrics(places: Places) -> list[Metric]:
    """The metrics. Raises RedisError."""
    roles = Roles(places.home.redis)
    rows = roles.rows()
    silent = [row for row in rows if roles.is_silent(row)]
    return [*_memory(places), *_processes(rows, silent), *_usage(rows), _build(rows)]


def _memory(places: Places) -> Iterable[Metric]:
    """The memory of the fullest server: what is full refuses requests, however much is free elsewhere."""
    asked = {id(group[0].redis): group[0] for group in places.by_server()}

    def note(pipeline: Any, place: Place) -> None:
        if asked[id(place.redis)] is place:
            pipeline.info("memory")

    memories = [reply for each in AllPlaces(places).ask(note) if each.error is None for reply in each.replies]
    if not memories:
        # The Redis user may lack the right to ask: then there is no such metric.
        return
    memory = max(memories, key=_fullness)
    for reading, field in ((metrics.REDIS_MEMORY_USED, "used_memory"), (metrics.REDIS_MEMORY_MAX, "maxmemory")):
        family = reading.family()
        family.add_metric((), float(memory.get(field, 0)))
        yield family


def _fullness(memory: Mapping[str, Any]) -> tuple[float, int]:
    used, limit = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    return used / limit if limit else 0.0, used


def _processes(rows: Sequence[RoleRow], silent: Sequence[RoleRow]) -> Iterable[Metric]:
    family = metrics.PROCESSES.family()
    for role in _ROLES:
        quiet = sum(row.role == role for row in silent)
        family.add_metric((role, "alive"), sum(row.role == role for row in rows) - quiet)
        family.add_metric((role, "silent"), quiet)
    return [family]


def _usage(rows: Sequence[RoleRow]) -> Iterable[Metric]:
    cpu, memory, fds = (
        reading.family() for reading in (metrics.PROCESS_CPU, metrics.PROCESS_MEMORY, metrics.PROCESS_FDS)
    )
    for role, name, usage in _named(rows):
        # A process that could not be measured has no sample, rather than 0.
        if usage.memory_bytes:
            cpu.add_metric((role, name), usage.cpu_s)
            memory.add_metric((role, name), usage.memory_bytes)
            fds.add_metric((role, name), usage.fds)
    return [cpu, memory, fds]


def _named(rows: Sequence[RoleRow]) -> Iterable[tuple[str, str, Usage]]:
    for row in rows:
        # Frontends of a host share a name and differ by pid; a worker's name is unique.
        yield row.role, f"{row.name}:{row.pid}" if row.role == "web" else row.name, row.usage
        for executor, usage in row.executors.items():
            yield "executor", f"{row.name}:{executor}", usage


def _build(rows: Sequence[RoleRow]) -> Metric:
    family = metrics.BUILD_INFO.family()
    kinds = [(row.version, row.python) for row in rows]
    for kind in sorted(set(kinds)):
        family.add_metric(kind, kinds.count(kind))
    return family
