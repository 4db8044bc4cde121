"""Settings: the environment (`BUNCH_…`) over `bunch.toml` `[server]` over the defaults of `config.schema`.

Every problem is reported at once, with its key, the bad value and what would be right; an unknown name is a problem
too, because a misspelt setting that is silently ignored is found in production.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from config import auth
from config.auth import is_loopback
from config.declared import BrokenSchema, read_schema
from config.errors import Problem, SettingsError, not_of_kind
from config.foreign import made_by_kubernetes
from config.schema import ModelSettings, Settings
from config.tiers import Tier

__all__ = ["PREFIX", "ModelSettings", "Settings", "file_is_named", "is_loopback", "load_settings"]

PREFIX = "BUNCH_"
DEFAULT_CONFIG_FILE = "bunch.toml"

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]+")
_ORIGIN = re.compile(r"\*|https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_SOURCE = re.compile(r"https?://\S+|[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_LEAST_MEMORY_BYTES = 64 * 1024 * 1024

# Of a value that may be long, in a line about it.
_SHOWN = 120

_FROM_FILE_ONLY = {"models", "default_model", "config_file"}
_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(Settings) if field.name not in _FROM_FILE_ONLY
}
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(Settings)}
_MODEL_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(ModelSettings) if field.name != "name"
}
# BUNCH_CONFIG names the file; it is read before the settings that the file may hold.
_OTHER_NAMES = {"config"}


def file_is_named() -> bool:
    """Whether the environment says which file holds models and settings."""
    return bool(os.environ.get(PREFIX + "CONFIG"))


def load_settings(environ: Mapping[str, str] | None = None, config_file: str | None = None) -> Settings:
    """Read, convert and cross-check every setting.

    Args:
        environ: the environment; `os.environ` when omitted.
        config_file: path of the TOML file; `BUNCH_CONFIG`, then `bunch.toml` if it exists, when omitted.

    Raises:
        SettingsError: with every problem found.
    """
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    chosen = config_file or environ.get(PREFIX + "CONFIG")
    path = Path(chosen or DEFAULT_CONFIG_FILE)
    document: dict[str, Any] = {}
    if path.is_file():
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), "…", f"is not valid TOML: {error}"))
    elif chosen:
        problems.append(Problem("--config" if config_file else PREFIX + "CONFIG", chosen, "no such file"))

    values: dict[str, Any] = {}
    _read_table(_table(document, "server", problems), values, problems)
    _read_environment(environ, values, problems)
    models = _read_models(_table(document, "models", problems), path.parent, problems)
    default_model = document.pop("default_model", next(iter(models), ""))
    for key, value in document.items():
        problems.append(
            Problem(key, value, f"unknown in {path.name}; known are default_model, [server], [models.<name>]")
        )
    settings = Settings(
        **values,
        models=models,
        default_model=str(default_model),
        config_file=str(path.resolve()) if path.is_file() else "",
    )
    problems += _contradictions(settings)
    if problems:
        raise SettingsError(tuple(problems))
    return settings


def _table(document: dict[str, Any], name: str, problems: list[Problem]) -> dict[str, Any]:
    table = document.pop(name, {})
    if isinstance(table, dict):
        return table
    problems.append(Problem(f"[{name}]", table, "must be a table"))
    return {}


def _read_table(table: Mapping[str, Any], values: dict[str, Any], problems: list[Problem]) -> None:
    for key, value in table.items():
        if key in _TYPES:
            _convert(f"[server] {key}", value, _TYPES[key], key, values, problems, strict=True)
        else:
            problems.append(
                Problem(f"[server] {key}", auth.shown_of_unknown(value), f"unknown; known are {', '.join(_TYPES)}")
            )


def _read_environment(environ: Mapping[str, str], values: dict[str, Any], problems: list[Problem]) -> None:
    for name, value in environ.items():
        if not name.startswith(PREFIX) or made_by_kubernetes(name, value):
            continue
        key = name.removeprefix(PREFIX).lower()
        if key in _TYPES:
            _convert(name, value, _TYPES[key], key, values, problems, strict=False)
        elif key not in _OTHER_NAMES:
            known = ", ".join(PREFIX + each.upper() for each in _TYPES)
            problems.append(Problem(name, auth.shown_of_unknown(value), f"unknown setting; known are {known}"))


def _read_models(tables: Mapping[str, Any], folder: Path, problems: list[Problem]) -> dict[str, ModelSettings]:
    models: dict[str, ModelSettings] = {}
    for name, table in tables.items():
        where = f"[models.{name}]"
        if not _MODEL_NAME.fullmatch(name):
            problems.append(
                Problem(where, name, "a model's name is lower-case letters, digits, - and _; it is part of a queue's")
            )
            continue
        if not isinstance(table, dict):
            problems.append(Problem(where, table, "must be a table"))
            continue
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key in _MODEL_TYPES:
                _convert(f"{where} {key}", value, _MODEL_TYPES[key], key, values, problems, strict=True)
            else:
                problems.append(Problem(f"{where} {key}", value, f"unknown; known are {', '.join(_MODEL_TYPES)}"))
        source = table.get("source", "")
        if not (isinstance(source, str) and _SOURCE.fullmatch(source)):
            problems.append(
                Problem(f"{where} source", source, 'must be "package.module:Name" or an http(s) URL of a fixed API')
            )
            continue
        _read_schemas(where, values, folder, problems)
        model = ModelSettings(name=name, **values)
        try:
            # As it travels to the executor's process, which must not be where this is found.
            msgspec.msgpack.encode(model)
        except OverflowError:
            problems.append(Problem(where, table, "holds a whole number of more than 64 bits"))
        models[name] = model
    return models


def _read_schemas(where: str, values: dict[str, Any], folder: Path, problems: list[Problem]) -> None:
    for key in ("input_schema", "parameters_schema"):
        declared = values.get(key)
        if declared is None:
            continue
        try:
            values[key] = read_schema(declared, folder)
        except BrokenSchema as error:
            problems.append(Problem(f"{where} {key}", _shortened(declared), f"must be a JSON Schema; {error}"))


def _shortened(value: object) -> object:
    return value if len(repr(value)) <= _SHOWN else f"{repr(value)[:_SHOWN]}…"


def _convert(
    key: str, value: Any, kind: Any, field: str, values: dict[str, Any], problems: list[Problem], *, strict: bool
) -> None:
    try:
        values[field] = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        problems.append(Problem(key, auth.shown(field, value), not_of_kind(error, kind)))


def _contradictions(settings: Settings) -> list[Problem]:
    """Settings checked against each other; the fix names which to change."""
    found: list[Problem] = []
    if settings.auth == "off" and not is_loopback(settings.http_host):
        found.append(
            Problem(
                "BUNCH_HTTP_HOST",
                settings.http_host,
                "with BUNCH_AUTH=off only a loopback address is served; set BUNCH_AUTH=keys, or keep 127.0.0.1 and "
                "put a proxy that authenticates in front, with its name in BUNCH_ALLOWED_HOSTS",
            )
        )
    found += _bad_names(settings)
    if not is_loopback(settings.flower_host) and not settings.flower_basic_auth:
        found.append(
            Problem(
                "BUNCH_FLOWER_HOST", settings.flower_host, "set BUNCH_FLOWER_BASIC_AUTH=user:password to expose Flower"
            )
        )
    found += auth.contradictions(settings)
    if settings.models and settings.default_model not in settings.models:
        found.append(Problem("default_model", settings.default_model, f"must be one of {', '.join(settings.models)}"))
    found += _limits_out_of_order(settings)
    for name, model in settings.models.items():
        if model.direct and not model.is_url:
            found.append(
                Problem(
                    f"[models.{name}] direct",
                    model.direct,
                    "only an http(s) URL as the source can be asked without a worker; leave it out",
                )
            )
        if model.group_by_cost and not model.max_batch_cost:
            found.append(
                Problem(f"[models.{name}] group_by_cost", True, "groups to a budget; set max_batch_cost as well")
            )
        limit = min(("request_timeout_ms", "queue_timeout_ms"), key=lambda key: getattr(settings, key))
        if (model.max_wait_ms or 0) >= getattr(settings, limit):
            found.append(
                Problem(
                    f"[models.{name}] max_wait_ms",
                    model.max_wait_ms,
                    f"must be below {PREFIX}{limit.upper()} ({getattr(settings, limit)}), or requests that gather for "
                    "so long expire before they are computed",
                )
            )
    if settings.durability == "replica":
        found.append(
            Problem(
                "BUNCH_DURABILITY",
                "replica",
                "is not there yet; disk writes each request to disk before it is accepted",
            )
        )
    if 0 < settings.redis_max_memory_bytes < _LEAST_MEMORY_BYTES:
        found.append(
            Problem(
                "BUNCH_REDIS_MAX_MEMORY_BYTES",
                settings.redis_max_memory_bytes,
                f"must be {_LEAST_MEMORY_BYTES} or more, or 0 for a quarter of the machine's memory",
            )
        )
    return found + _bad_addresses(settings)


def _bad_names(settings: Settings) -> Iterator[Problem]:
    hosts = [each for each in settings.host_names if not _HOST_NAME.fullmatch(each)]
    if hosts:
        fix = "must be host names with commas, without ports or wildcards"
        yield Problem("BUNCH_ALLOWED_HOSTS", ", ".join(hosts), fix)
    origins = [each for each in settings.origins if not _ORIGIN.fullmatch(each)]
    if origins:
        fix = "must be origins with commas, without a path: https://app.example, http://localhost:3000; or *"
        yield Problem("BUNCH_CORS_ORIGINS", ", ".join(origins), fix)
    if settings.auth == "off" and "*" in settings.origins:
        fix = "with BUNCH_AUTH=off any page that somebody on this machine opens could ask; name the origins"
        yield Problem("BUNCH_CORS_ORIGINS", "*", fix)


def _bad_addresses(settings: Settings) -> list[Problem]:
    redis = (r"(redis|rediss|unix|redis\+socket)://", "must start with redis://, rediss:// or unix://")
    kinds = {
        "redis_url": redis,
        "broker_url": redis,
        "otlp_endpoint": (r"https?://", "must be a URL of OTLP over HTTP: http://host:4318"),
    }
    return [
        Problem(PREFIX + key.upper(), getattr(settings, key).split("@")[-1], problem)
        for key, (pattern, problem) in kinds.items()
        if getattr(settings, key) and not re.match(pattern, getattr(settings, key))
    ]


def _limits_out_of_order(settings: Settings) -> list[Problem]:
    found = []
    if not settings.free_rpm <= settings.paid_rpm <= settings.enterprise_rpm:
        found.append(
            Problem(
                f"{PREFIX}PAID_RPM",
                settings.paid_rpm,
                f"must be between {PREFIX}FREE_RPM ({settings.free_rpm}) and {PREFIX}ENTERPRISE_RPM "
                f"({settings.enterprise_rpm}): a higher tier may ask more often",
            )
        )
    for unit in ("ms", "depth"):
        free, paid = getattr(settings, f"shed_free_{unit}"), getattr(settings, f"shed_paid_{unit}")
        if free > paid:
            found.append(
                Problem(
                    f"{PREFIX}SHED_FREE_{unit.upper()}",
                    free,
                    f"must not be above {PREFIX}SHED_PAID_{unit.upper()} ({paid}): the lower tier is refused first",
                )
            )
    for tier in (Tier.PAID, Tier.FREE):
        limit = settings.queue_timeout_of(tier)
        longest = {"ageing_ms": limit}
        if settings.admission == "drain":
            # A threshold counts at the promised capacity, a timeout at what the fleet really does.
            longest[f"shed_{tier.value}_ms"] = limit * 100 // settings.capacity_percent
        for key, most in longest.items():
            # A default gives way by itself: whoever shortens a timeout need not know of it.
            if getattr(settings, key) > most and getattr(settings, key) != _DEFAULTS[key]:
                found.append(
                    Problem(
                        PREFIX + key.upper(),
                        getattr(settings, key),
                        f"never takes effect, as requests of {tier.value} wait {limit} ms at most; stay below {most}, "
                        f"or raise {PREFIX}{tier.value.upper()}_QUEUE_TIMEOUT_MS",
                    )
                )
    return found
