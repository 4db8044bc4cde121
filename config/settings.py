"""Settings: the environment (`BUNCH_…`) over `bunch.toml` `[server]` over the defaults below.

Milliseconds at the edge, as people write them; the `_s` properties are what the code uses. Every problem is
reported at once, with its key, the bad value and what would be right; an unknown name is a problem too,
because a misspelt setting that is silently ignored is found in production.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from config import auth
from config.auth import AuthSettings, is_loopback
from config.errors import Problem, SettingsError
from config.tiers import Tier

__all__ = ["PREFIX", "ModelSettings", "Settings", "is_loopback", "load_settings"]

PREFIX = "BUNCH_"
DEFAULT_CONFIG_FILE = "bunch.toml"

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NaturalInt = Annotated[int, msgspec.Meta(ge=0)]
# Under twelve days: times travel in fields of fixed width (`batching.stamp`).
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]
UpToMilliseconds = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
# Above a million a minute the intervals between requests would be rounded to something else.
Rpm = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SOURCE = re.compile(r"https?://\S+|[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[models.<name>]` table of `bunch.toml`."""

    name: str
    source: str
    version: str = "1"
    max_batch_size: PositiveInt = 64
    max_batch_cost: NaturalInt = 0
    group_by_cost: bool = False
    # None: what suits the policy, `batching.policy.DEFAULT_MAX_WAIT_S`.
    max_wait_ms: NaturalInt | None = None
    policy: Literal["adaptive", "idle", "fixed", "ewma", "pid", "thresholds", "slo", "speculative"] = "adaptive"
    policy_options: dict[str, Any] = {}
    instances: PositiveInt = 1
    device: str = "auto"
    timeout_ms: PositiveInt = 3000
    start_timeout_ms: PositiveInt = 120_000
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=90)] = 3
    max_queue_depth: PositiveInt = 20_000
    max_memory_bytes: NaturalInt = 0
    direct: bool = False
    direct_concurrency: PositiveInt = 16
    options: dict[str, Any] = {}

    @property
    def max_wait_s(self) -> float | None:
        return None if self.max_wait_ms is None else self.max_wait_ms / 1000

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @property
    def start_timeout_s(self) -> float:
        return self.start_timeout_ms / 1000


class Settings(AuthSettings, frozen=True, kw_only=True):
    """Everything that one process of Bunch is told from outside. Field names are the setting names in lower case."""

    redis_url: str = ""
    broker_url: str = ""
    result_ttl_ms: Milliseconds = 600_000
    sync_result_ttl_ms: Milliseconds = 60_000
    http_host: str = "127.0.0.1"
    http_port: Port = 8000
    web_workers: PositiveInt = 2
    request_timeout_ms: Milliseconds = 10_000
    queue_timeout_ms: Milliseconds = 2_000
    # Per tier; 0: as above.
    enterprise_queue_timeout_ms: UpToMilliseconds = 0
    paid_queue_timeout_ms: UpToMilliseconds = 0
    free_queue_timeout_ms: UpToMilliseconds = 0
    # How a tier's threshold is meant: the time that what waits takes to drain, its number, or no thresholds.
    admission: Literal["drain", "depth", "off"] = "drain"
    shed_free_ms: Milliseconds = 500
    shed_paid_ms: Milliseconds = 1_500
    shed_free_depth: PositiveInt = 100
    shed_paid_depth: PositiveInt = 500
    capacity_percent: Percent = 70
    max_memory_percent: Percent = 80
    ageing_ms: Milliseconds = 500
    # Requests a minute of each key of a tier that has no limit of its own, and how much of that may come at once.
    enterprise_rpm: Rpm = 10_000
    paid_rpm: Rpm = 1_000
    free_rpm: Rpm = 60
    burst_ms: Milliseconds = 10_000
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 1_048_576
    max_bulk_items: PositiveInt = 1_000
    default_tier: Tier = Tier.PAID
    state_dir: str = "var"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"
    lease_ttl_ms: Annotated[int, msgspec.Meta(ge=1000)] = 5_000
    graceful_timeout_ms: PositiveInt = 30_000
    metrics: Literal["on", "off"] = "on"
    slo_enterprise_ms: Milliseconds = 500
    slo_paid_ms: Milliseconds = 1_000
    slo_free_ms: Milliseconds = 2_000
    slo_enterprise_target: Share = 0.999
    slo_paid_target: Share = 0.99
    slo_free_target: Share = 0.95
    otlp_endpoint: str = ""
    trace_sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    flower_host: str = "127.0.0.1"
    flower_port: Port = 5555
    flower_basic_auth: str = ""
    flower_max_tasks: PositiveInt = 10_000
    flower_persistent: bool = True
    events_per_second: Annotated[float, msgspec.Meta(ge=1)] = 100.0
    explain: Literal["on", "off"] = "on"

    # Not settable by a BUNCH_ name: what the file says about models.
    models: Mapping[str, ModelSettings] = {}
    default_model: str = ""
    config_file: str = ""

    @property
    def result_ttl_s(self) -> float:
        return self.result_ttl_ms / 1000

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def queue_timeout_s(self) -> float:
        return self.queue_timeout_ms / 1000

    def queue_timeout_of(self, tier: Tier) -> int:
        """How long a request of `tier` may wait, in milliseconds."""
        own = {
            Tier.ENTERPRISE: self.enterprise_queue_timeout_ms,
            Tier.PAID: self.paid_queue_timeout_ms,
            Tier.FREE: self.free_queue_timeout_ms,
        }
        return own[tier] or self.queue_timeout_ms

    def rpm_of(self, tier: Tier) -> int:
        """Requests a minute of a key of `tier` that has no limit of its own."""
        return {Tier.ENTERPRISE: self.enterprise_rpm, Tier.PAID: self.paid_rpm, Tier.FREE: self.free_rpm}[tier]

    def shed_thresholds(self) -> tuple[int | None, ...]:
        """From which pressure on requests of a tier are refused, highest first: in ms or in requests; None: never."""
        if self.admission == "depth":
            return (None, self.shed_paid_depth, self.shed_free_depth)
        return (None, self.shed_paid_ms, self.shed_free_ms)

    @property
    def lease_ttl_s(self) -> float:
        return self.lease_ttl_ms / 1000

    @property
    def graceful_timeout_s(self) -> float:
        return self.graceful_timeout_ms / 1000

    @property
    def control_url(self) -> str:
        """Where Celery's own traffic (remote control, events, plain tasks) goes."""
        return self.broker_url or self.redis_url


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
        problems.append(Problem(PREFIX + "CONFIG", chosen, "no such file"))

    values: dict[str, Any] = {}
    _read_table(_table(document, "server", problems), values, problems)
    _read_environment(environ, values, problems)
    models = _read_models(_table(document, "models", problems), problems)
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
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower()
        if key in _TYPES:
            _convert(name, value, _TYPES[key], key, values, problems, strict=False)
        elif key not in _OTHER_NAMES:
            known = ", ".join(PREFIX + each.upper() for each in _TYPES)
            problems.append(Problem(name, auth.shown_of_unknown(value), f"unknown setting; known are {known}"))


def _read_models(tables: Mapping[str, Any], problems: list[Problem]) -> dict[str, ModelSettings]:
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
        models[name] = ModelSettings(name=name, **values)
    return models


def _convert(
    key: str, value: Any, kind: Any, field: str, values: dict[str, Any], problems: list[Problem], *, strict: bool
) -> None:
    try:
        values[field] = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        problems.append(Problem(key, auth.shown(field, value), str(error)))


def _contradictions(settings: Settings) -> list[Problem]:
    """Settings checked against each other; the fix names which to change."""
    found: list[Problem] = []
    if settings.auth == "off" and not is_loopback(settings.http_host):
        found.append(
            Problem(
                "BUNCH_HTTP_HOST",
                settings.http_host,
                "with BUNCH_AUTH=off only a loopback address is served; set BUNCH_AUTH=keys, or keep 127.0.0.1 and "
                "put a proxy that authenticates in front",
            )
        )
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
        if model.direct and not model.source.startswith(("http://", "https://")):
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
    return found + _bad_addresses(settings)


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
