"""`queues`, `workers` and `models`: what is waiting, running and loaded; once, or live with `--watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cli.base import (
    as_written,
    config_option,
    fail,
    json_option,
    locate,
    places_of,
    print_json,
    redis_of,
    show,
    table,
    tell_missing,
    watch_option,
    watched,
    watched_json,
)
from cli.operate import processes
from config.installation import PROGRAM
from config.secrets import masking
from config.settings import ModelSettings, Settings
from tasks.observability.error_summary import error_summary

if TYPE_CHECKING:
    from redis import Redis
    from rich.console import RenderableType

    from tasks.fleet.desired_state import Desired
    from tasks.fleet.registry_reader import ExecutorRow, Fleet, QueueRow, WorkerRow


@click.command()
@config_option
@watch_option
@json_option
def queues(config_file: Path | None, every_s: float | None, as_json: bool) -> None:
    """Show depth, oldest age and arrival rate of each model and tier."""
    from tasks.fleet.desired_state import DesiredState
    from tasks.fleet.queue_reader import QueueReader
    from tasks.fleet.registry_reader import Fleet

    settings = locate(config_file)
    places = places_of(settings)
    redis = places.home.redis
    reader = QueueReader(places, Fleet(redis, lease_ttl_s=settings.lease_ttl_s))

    def read() -> list[QueueRow]:
        waiting = reader.read(settings.models)
        tell_missing(waiting.down, "its requests are not counted")
        return waiting.queues

    def shown() -> RenderableType:
        desired = DesiredState(redis).read(settings.models)
        paused = {(name, tier.value) for name, each in desired.items() for tier in each.paused}
        return table(
            read(),
            [
                ("model", lambda row: row.model),
                ("tier", lambda row: row.tier),
                ("depth", lambda row: row.depth),
                ("oldest ms", lambda row: row.oldest_ms),
                ("arrivals/s", lambda row: row.arrival_rps),
                ("", lambda row: "paused" if (row.model, row.tier) in paused else ""),
            ],
            empty="no models are configured; add one to bunch.toml",
        )

    _show(every_s, as_json, read, shown)


@click.command()
@config_option
@watch_option
@json_option
@click.option(
    "--all", "everybody", is_flag=True, help="List the processes of all roles, and where their configurations differ."
)
def workers(config_file: Path | None, every_s: float | None, as_json: bool, everybody: bool) -> None:
    """List the workers and their executors. Exit 1 when no worker is healthy."""
    from rich.console import Group

    from tasks.fleet.process_register import Roles
    from tasks.fleet.registry_reader import Fleet

    settings = locate(config_file)
    redis = redis_of(settings)
    fleet = Fleet(redis, lease_ttl_s=settings.lease_ttl_s)
    if everybody:
        ttl_s = settings.lease_ttl_s
        _show(every_s, as_json, lambda: processes.rows(redis, ttl_s), lambda: processes.shown(redis, ttl_s))
        return

    def rows() -> list[dict[str, Any]]:
        found = fleet.workers()
        healthy = {row.id for row in fleet.healthy_of(found)}
        return [{**msgspec.to_builtins(row), "healthy": row.id in healthy} for row in found]

    def both() -> RenderableType:
        return Group(_workers_table(fleet), *processes.remarks(Roles(redis).rows()))

    _show(every_s, as_json, rows, both)
    if not fleet.healthy():
        fail()


@click.command()
@config_option
@watch_option
@json_option
def models(config_file: Path | None, every_s: float | None, as_json: bool) -> None:
    """List the configured models and how they are served. Exit 1 when one is served nowhere."""
    settings = locate(config_file)
    redis = redis_of(settings)

    def rows() -> list[dict[str, Any]]:
        return _model_rows(settings, redis)

    _show(every_s, as_json, rows, lambda: _models_table(settings, redis))
    if any(row["served"] == 0 for row in rows()):
        fail()


def _show(every_s: float | None, as_json: bool, rows: Callable[[], Any], shown: Callable[[], RenderableType]) -> None:
    if every_s is not None:
        watched_json(every_s, rows) if as_json else watched(every_s, shown)
    elif as_json:
        print_json(rows())
    else:
        show(shown())


def _workers_table(fleet: Fleet) -> RenderableType:
    from rich.console import Group

    rows = fleet.workers()
    # A draining worker is healthy; it just claims nothing.
    silent = {row.id for row in rows} - {row.id for row in fleet.alive_of(rows)}
    shown = table(
        [(row, each) for row in rows for each in row.models or (None,)],
        [
            ("worker", lambda pair: pair[0].name),
            ("pool", lambda pair: pair[0].pool or "–"),
            ("pid", lambda pair: str(pair[0].pid)),
            ("state", lambda pair: "silent" if pair[0].id in silent else _state(pair[0])),
            ("up s", lambda pair: max(0, int(time.time() - pair[0].started_at))),
            ("beat ms ago", lambda pair: pair[0].age_ms),
            ("executor", lambda pair: pair[1].executor if pair[1] else "–"),
            ("device", lambda pair: (pair[1].device or "URL") if pair[1] else "–"),
            ("executor state", lambda pair: pair[1].state if pair[1] else "–"),
            ("busy %", lambda pair: pair[1].busy * 100 if pair[1] else 0.0),
            ("batches", lambda pair: pair[1].batches if pair[1] else 0),
            ("ms per request", lambda pair: _learnt(pair[1] and pair[1].one_ms)),
            ("capacity /s", lambda pair: _learnt(pair[1] and pair[1].rate_rps)),
            ("breaker", lambda pair: pair[1].breaker if pair[1] else "–"),
            ("safe batch", lambda pair: (pair[1] and (pair[1].pressed_size or pair[1].safe_size)) or "–"),
        ],
        empty=f"no worker has reported; start one with `{PROGRAM} worker`",
    )
    return Group(shown, *map(as_written, _errors(rows)))


def _models_table(settings: Settings, redis: Redis) -> RenderableType:
    from rich.console import Group

    from tasks.fleet.registry_reader import Fleet

    healthy = Fleet(redis, lease_ttl_s=settings.lease_ttl_s).healthy()
    rows = _model_rows(settings, redis)
    refused = [
        f"\nthe reload of {row['model']} was refused; the previous version keeps running:\n{row['reload_refused']}"
        for row in rows
        if row["reload_refused"]
    ]
    shown = table(
        rows,
        [
            ("model", lambda row: row["model"]),
            ("version", lambda row: row["version"]),
            ("ready", lambda row: row["ready"]),
            ("residency", lambda row: row["residency"]),
            ("executors", lambda row: row["executors"]),
            ("batch size", lambda row: row["max_batch_size"]),
            ("safe batch", lambda row: row["safe_batch_size"] or "–"),
            ("breaker", lambda row: row["breaker"]),
            ("policy", lambda row: row["policy"]),
            ("source", lambda row: row["source"]),
            ("on", _where),
            ("", _remarks),
        ],
        empty="no models are configured; add one to bunch.toml",
    )
    return Group(shown, *map(as_written, refused + _errors(healthy)))


def _model_rows(settings: Settings, redis: Redis) -> list[dict[str, Any]]:
    from tasks.fleet.desired_state import DesiredState
    from tasks.fleet.registry_reader import Fleet

    healthy = Fleet(redis, lease_ttl_s=settings.lease_ttl_s).healthy()
    desired = DesiredState(redis).read(settings.models)
    return [_model_row(model, desired[model.name], healthy) for model in settings.models.values()]


def _model_row(model: ModelSettings, desired: Desired, healthy: list[WorkerRow]) -> dict[str, Any]:
    from tasks.fleet.desired_state import weight_of, with_desired
    from tasks.fleet.registry_reader import breakers, safe_sizes

    executors = [each for row in healthy for each in row.models if each.model == model.name]
    on_demand = {row.id: each.on_demand for row in healthy for each in row.models if each.model == model.name}
    loads = [each for each in on_demand.values() if each]
    now = with_desired(model, desired)
    return {
        "model": model.name,
        "version": now.version,
        "weight": weight_of(model, desired) if model.name != model.family else None,
        "source": masking.shown("source", now.source),
        "policy": now.policy,
        "max_batch_size": now.max_batch_size,
        "max_wait_ms": now.max_wait_ms,
        "executors": len(executors),
        "placement": [
            {
                "worker": row.name,
                "pool": row.pool,
                "executor": each.executor,
                "device": each.device,
                "state": each.state,
                "pid": each.pid,
            }
            for row in healthy
            for each in row.models
            if each.model == model.name
        ],
        "ready": sum(each.state == "ready" for each in executors),
        "served": sum(each.is_served for each in executors),
        "residency": _residency(executors),
        "loads": sum(each.loads for each in loads),
        "load_ms": max((each.load_ms or 0 for each in loads), default=0) or None,
        "paused": [tier.value for tier in sorted(desired.paused, key=lambda tier: tier.rank)],
        "tuned": desired.tuned | ({} if desired.weight is None else {"weight": desired.weight}),
        "reload_refused": desired.refusal if desired.is_refused else None,
        "breaker": breakers(healthy, [model.name])[model.name],
        "safe_batch_size": safe_sizes(healthy).get(model.name),
        "error": next((each.error for each in executors if each.error), None),
    }


def _residency(executors: Sequence[ExecutorRow]) -> str:
    """`always`, or the stages of a model that is loaded on demand, in each worker: `resident`, `unloaded`, …"""
    stages = [each.on_demand.residency for each in executors if each.on_demand]
    return ", ".join(dict.fromkeys(stages)) or "always"


def _where(row: dict[str, Any]) -> str:
    """Each worker with the devices of its executors: `fast-1@host: cuda (0), cuda (1)`."""
    devices: dict[str, list[str]] = {}
    for each in row["placement"]:
        devices.setdefault(each["worker"], []).append(each["device"] or "URL")
    return "; ".join(f"{worker}: {', '.join(found)}" for worker, found in devices.items()) or "–"


def _remarks(row: dict[str, Any]) -> str:
    paused = [f"paused: {', '.join(row['paused'])}"] if row["paused"] else []
    weight = [f"weight {row['weight']:g} %"] if row["weight"] is not None else []
    tuned = [f"tuned: {' '.join(row['tuned'])}"] if row["tuned"] else []
    refused = ["reload refused"] if row["reload_refused"] else []
    return "; ".join(weight + paused + tuned + refused)


def _state(row: WorkerRow) -> str:
    return row.state if row.state != "running" or row.health == "healthy" else row.health


def _errors(rows: list[WorkerRow]) -> list[str]:
    troubled: list[ExecutorRow] = [each for row in rows for each in row.models if each.error]
    ill = [f"\n{row.name} is {row.health}: {'; '.join(row.reasons)}" for row in rows if row.health != "healthy"]
    return ill + [
        f"\n{each.executor} {'is being replaced' if each.state == 'starting' else 'did not start'}: "
        f"{error_summary(each.error or '')}\n{each.error}"
        for each in troubled
    ]


def _learnt(value: float | None) -> float | str:
    return "–" if value is None else value
