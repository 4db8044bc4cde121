"""Devices, memory fractions, pools and the files of URLs, checked against each other. No driver is asked: the file may
be for another machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from config.errors import Problem
from config.model_files.api_source import TLS_FILES
from config.model_files.pools import worker_problems
from config.process.devices import DEVICES, is_device
from config.schema import Devices, ModelSettings, PoolSettings, Settings
from config.secrets.masking import masked_url

_ALL = "all"


def placement_problems(settings: Settings) -> Iterator[Problem]:
    """Every problem with where models run."""
    for model in settings.models.values():
        yield from _of_model(model)
    for pool in settings.pools.values():
        yield from _of_pool(pool, settings)
        yield from _crowded(f"[pools.{pool.name}] models", _members(pool, settings), pool.devices)
    if settings.pools:
        placed = {name for pool in settings.pools.values() for name in pool.models}
        for name in settings.models:
            if name not in placed:
                fix = "is in no pool, so no worker of a pool serves it; add it to the models of one"
                yield Problem(f"[models.{name}]", name, fix)
    else:
        yield from _crowded("[models]", list(settings.models.values()), None)
    yield from worker_problems(settings)


def _of_model(model: ModelSettings) -> Iterator[Problem]:
    where = f"[models.{model.name}]"
    yield from _bad_devices(where, model.devices)
    if model.is_remote:
        for key in ("devices", "memory_fraction"):
            if getattr(model, key) is not None:
                fix = "has no effect on a model that runs behind a URL; remove it"
                yield Problem(f"{where} {key}", _shown(getattr(model, key)), fix)
        yield from _tls(where, model)
        return
    for key in ("urls", *TLS_FILES):
        if getattr(model, key):
            yield Problem(f"{where} {key}", _shown(getattr(model, key)), "needs a URL as the source; remove it")
    if model.devices is not None:
        fix = "has no effect beside devices, which has an entry for each executor; remove it"
        if model.device != "auto":
            yield Problem(f"{where} device", model.device, fix)
        if model.instances != 1:
            more = f"{fix}, and name a device as often as it shall have executors"
            yield Problem(f"{where} instances", model.instances, more)


def _tls(where: str, model: ModelSettings) -> Iterator[Problem]:
    if model.urls and "url" in model.options:
        fix = "is called instead of every address in source and urls; remove it"
        yield Problem(f"{where} options.url", masked_url(str(model.options["url"])), fix)
    used = [key for key in TLS_FILES if getattr(model, key)]
    plain = [each for each in model.replicas if "http://" in each]
    if used and plain:
        fix = f"has no effect on {masked_url(plain[0])}, which is not encrypted; write https://"
        yield Problem(f"{where} {used[0]}", getattr(model, used[0]), fix)
    if model.key_file and not model.cert_file:
        yield Problem(f"{where} key_file", model.key_file, "is the key of a certificate; set cert_file as well")
    if model.ca_file and model.options.get("verify", True) is False:
        fix = "has no effect beside options.verify = false, which accepts any certificate; remove verify"
        yield Problem(f"{where} ca_file", model.ca_file, fix)


def _of_pool(pool: PoolSettings, settings: Settings) -> Iterator[Problem]:
    where = f"[pools.{pool.name}]"
    yield from _bad_devices(where, pool.devices)
    unknown = [name for name in pool.models if name not in settings.models]
    if unknown:
        known = ", ".join(settings.models) or "none, as no model is configured"
        yield Problem(f"{where} models", ", ".join(unknown), f"must name models of this file: {known}")
    if not pool.models:
        yield Problem(f"{where} models", "[]", "must name at least one model; or remove the pool")
    twice = sorted({name for name in pool.models if pool.models.count(name) > 1})
    if twice:
        yield Problem(f"{where} models", ", ".join(twice), "names a model twice; its executors are set by devices")


def _bad_devices(where: str, devices: Devices) -> Iterator[Problem]:
    if devices == ():
        yield Problem(f"{where} devices", "[]", "must name at least one device; or remove it")
    elif isinstance(devices, tuple):
        bad = [each for each in devices if not is_device(each)]
        if bad:
            yield Problem(f"{where} devices", ", ".join(bad), f"must be {DEVICES}")


def _members(pool: PoolSettings, settings: Settings) -> list[ModelSettings]:
    return [settings.models[name] for name in pool.models if name in settings.models]


def _crowded(where: str, models: list[ModelSettings], devices: Devices) -> Iterator[Problem]:
    """Devices whose memory fractions come to more than 1, in one worker, of models that are always loaded."""
    sums: dict[str, float] = {}
    for model in models:
        if not model.on_demand:
            for device, fraction in taken(model, devices).items():
                sums[device] = sums.get(device, 0.0) + fraction
    everywhere = sums.pop(_ALL, 0.0)
    for device, total in sums.items() or {_ALL: 0.0}.items():
        if total + everywhere > 1 + 1e-9:
            fix = f"the memory_fraction of all executors on a device must come to at most 1, not {total + everywhere:g}"
            yield Problem(where, f"{device}: {', '.join(model.name for model in models)}", fix)


def taken(model: ModelSettings, pools: Devices) -> dict[str, float]:
    """The share of each GPU that a model takes, as far as the file tells: `auto` puts at least the first executor on
    the first GPU. A spare has the model loaded as well.
    """
    sums: dict[str, float] = {}
    if model.memory_fraction is None or model.is_remote:
        return sums
    devices = model.devices or (pools if model.device == "auto" else None)
    if devices is None:
        exact = model.device not in {"auto", "cuda"}
        devices = tuple(itertools.repeat(model.device, model.instances)) if exact else ("cuda:0",)
    for each in (_ALL,) if devices == _ALL else devices:
        if each != "cpu":
            sums[each] = sums.get(each, 0.0) + model.processes * model.memory_fraction
    return sums


def _shown(value: object) -> object:
    return ", ".join(value) if isinstance(value, tuple) else value
