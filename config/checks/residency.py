"""On-demand models for which there can never be room, or no limit that says how many fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config.checks.placement import taken
from config.errors import Problem
from config.schema import Devices, ModelSettings, Settings


def residency_problems(settings: Settings) -> Iterator[Problem]:
    """Every problem with models that are loaded on demand."""
    for model in settings.models.values():
        if model.on_demand and model.is_remote:
            fix = "has no effect on a model that runs behind a URL, which takes no room here; remove it"
            yield Problem(f"[models.{model.name}] residency", "on_demand", fix)
    yield from _without_effect(settings)
    if settings.pools:
        for pool in settings.pools.values():
            members = [settings.models[name] for name in pool.models if name in settings.models]
            where = f"[pools.{pool.name}] max_resident"
            yield from _of_worker(members, pool.devices, pool.max_resident or settings.max_resident, where)
    else:
        models = list(settings.models.values())
        yield from _of_worker(models, None, settings.max_resident, "[server] max_resident")


def _without_effect(settings: Settings) -> Iterator[Problem]:
    limits = {f"[pools.{pool.name}] max_resident": (pool.max_resident, pool.models) for pool in settings.pools.values()}
    limits["[server] max_resident"] = (settings.max_resident or None, tuple(settings.models))
    for where, (limit, names) in limits.items():
        if limit is not None and not any(settings.models[name].on_demand for name in names if name in settings.models):
            fix = 'limits on-demand models, and there is none; set residency = "on_demand" in a model, or remove it'
            yield Problem(where, limit, fix)


def _of_worker(models: Sequence[ModelSettings], devices: Devices, most: int, where: str) -> Iterator[Problem]:
    """The problems in one worker."""
    asked = [model for model in models if model.on_demand and not model.is_remote]
    always: dict[str, float] = {}
    for model in models:
        if not model.on_demand:
            for device, share in taken(model, devices).items():
                always[device] = always.get(device, 0.0) + share
    for model in asked:
        own = f"[models.{model.name}]"
        if most and model.processes > most:
            fix = f"must be at least {model.processes}: {model.name} takes that many places, its spare one of them"
            yield Problem(where, most, fix)
        if not most and model.memory_fraction is None:
            fix = f"needs to know how many models fit; set its memory_fraction, or {where}"
            yield Problem(f"{own} residency", "on_demand", fix)
        for device, share in taken(model, devices).items():
            left = 1 - always.get(device, 0.0) - (always.get("all", 0.0) if device != "all" else 0.0)
            if share > left + 1e-9:
                fix = (
                    f"can never be loaded on {device}: with its instances and its spare it takes {share:g} of the "
                    f"memory, and models that are always loaded leave {left:g}; lower one of them"
                )
                yield Problem(f"{own} memory_fraction", model.memory_fraction, fix)
