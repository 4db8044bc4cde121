"""Pools: which models the workers of each serve, and what one worker serves.

[pools.<name>]  ──read_pools──▶ PoolSettings ──assignment──▶ the models and devices of one worker
worker --pool NAME, --models a,b ─────────────────▲
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from config.errors import Problem, not_of_kind
from config.schema import Devices, ModelSettings, PoolSettings, Settings
from config.secrets import masking

_POOL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The models of one worker. `devices` are for models that name none themselves; `pool` is empty without one.

    `max_resident` is the number of on-demand models that may be loaded at once; 0: no such limit.
    """

    models: Mapping[str, ModelSettings]
    devices: Devices = None
    pool: str = ""
    max_resident: int = 0


def assignment(settings: Settings) -> Assignment:
    """The models of the worker with these settings; without a pool or a list, all of them."""
    pool = settings.pools.get(settings.worker_pool)
    names = pool.models if pool else _listed(settings) or tuple(settings.models)
    models = {name: settings.models[name] for name in names if name in settings.models}
    most = pool.max_resident if pool and pool.max_resident else settings.max_resident
    return Assignment(models, pool.devices if pool else None, settings.worker_pool, most)


def read_pools(tables: Mapping[str, Any], problems: list[Problem]) -> dict[str, PoolSettings]:
    """The pools of bunch.toml."""
    pools: dict[str, PoolSettings] = {}
    for name, table in tables.items():
        where = f"[pools.{name}]"
        if not _POOL_NAME.fullmatch(name):
            fix = "must have only lower-case letters, digits, - and _: it becomes part of its workers' names"
            problems.append(Problem(where, name, fix))
        elif not isinstance(table, dict):
            problems.append(Problem(where, table, "must be a table"))
        elif "models" not in table:
            problems.append(Problem(where, "", "names no models; add models = [...], the models that it serves"))
        else:
            try:
                pools[name] = msgspec.convert({**table, "name": name}, PoolSettings)
            except msgspec.ValidationError as error:
                kind = not_of_kind(error, PoolSettings)
                problems.append(Problem(where, masking.MASK, f"has the keys models, devices and max_resident; {kind}"))
    return pools


def worker_problems(settings: Settings) -> list[Problem]:
    """The problems with `worker --pool` and `worker --models`."""
    pool, listed = settings.worker_pool, settings.worker_models
    if pool and listed:
        return [Problem("--models", listed, f"the pool {pool} says which models it serves; give one of the two")]
    if pool and pool not in settings.pools:
        known = f"must be one of {', '.join(settings.pools)}" if settings.pools else "there is no [pools.<name>]"
        return [Problem("--pool", pool, known)]
    unknown = [name for name in _listed(settings) if name not in settings.models]
    fix = f"must be a comma-separated list of {', '.join(settings.models)}"
    return [Problem("--models", ", ".join(unknown), fix)] if unknown else []


def _listed(settings: Settings) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in settings.worker_models.split(",") if name.strip()))
