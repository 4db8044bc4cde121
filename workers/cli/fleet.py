"""`queues`, `workers` and `models`: what waits, what runs, what is loaded."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from config.settings import ModelSettings
from tasks.fleet import ExecutorRow, Fleet, WorkerRow
from workers.cli.base import config_option, fail, json_option, locate, print_json, print_table, redis_of


@click.command()
@config_option
@json_option
def queues(config_file: Path | None, as_json: bool) -> None:
    """Depth, oldest age and arrival rate of each model's tiers."""
    settings = locate(config_file)
    rows = Fleet(redis_of(settings), lease_ttl_s=settings.lease_ttl_s).queues(settings.models)
    if as_json:
        print_json(rows)
        return
    print_table(
        rows,
        [
            ("model", lambda row: row.model),
            ("tier", lambda row: row.tier),
            ("depth", lambda row: row.depth),
            ("oldest ms", lambda row: row.oldest_ms),
            ("arrivals/s", lambda row: row.arrival_rps),
        ],
        empty="no models are configured; add one to bunch.toml",
    )


@click.command()
@config_option
@json_option
def workers(config_file: Path | None, as_json: bool) -> None:
    """The workers and their executors. Exit 1 when none is healthy."""
    settings = locate(config_file)
    fleet = Fleet(redis_of(settings), lease_ttl_s=settings.lease_ttl_s)
    rows = fleet.workers()
    healthy = {row.id for row in fleet.healthy()}
    if as_json:
        print_json([{**msgspec.to_builtins(row), "healthy": row.id in healthy} for row in rows])
    else:
        print_table(
            [(row, each) for row in rows for each in row.models or (None,)],
            [
                ("worker", lambda pair: pair[0].hostname),
                ("pid", lambda pair: str(pair[0].pid)),
                ("state", lambda pair: pair[0].state if pair[0].id in healthy else "silent"),
                ("up s", lambda pair: max(0, int(time.time() - pair[0].started_at))),
                ("beat ms ago", lambda pair: pair[0].age_ms),
                ("executor", lambda pair: pair[1].executor if pair[1] else "–"),
                ("executor state", lambda pair: pair[1].state if pair[1] else "–"),
                ("busy %", lambda pair: pair[1].busy * 100 if pair[1] else 0.0),
                ("batches", lambda pair: pair[1].batches if pair[1] else 0),
            ],
            empty="no worker has reported; start one with `manage.py worker`",
        )
        _print_errors(rows)
    if not healthy:
        fail()


@click.command()
@config_option
@json_option
def models(config_file: Path | None, as_json: bool) -> None:
    """The configured models and where they are loaded. Exit 1 when one is loaded nowhere."""
    settings = locate(config_file)
    healthy = Fleet(redis_of(settings), lease_ttl_s=settings.lease_ttl_s).healthy()
    rows = [_model_row(model, healthy) for model in settings.models.values()]
    if as_json:
        print_json(rows)
    else:
        print_table(
            rows,
            [
                ("model", lambda row: row["model"]),
                ("version", lambda row: row["version"]),
                ("ready", lambda row: row["ready"]),
                ("executors", lambda row: row["executors"]),
                ("batch size", lambda row: row["max_batch_size"]),
                ("policy", lambda row: row["policy"]),
                ("source", lambda row: row["source"]),
            ],
            empty="no models are configured; add one to bunch.toml",
        )
        _print_errors(healthy)
    if any(row["ready"] == 0 for row in rows):
        fail()


def _model_row(model: ModelSettings, healthy: list[WorkerRow]) -> dict[str, object]:
    executors = [each for row in healthy for each in row.models if each.model == model.name]
    return {
        "model": model.name,
        "version": model.version,
        "source": model.source,
        "policy": model.policy,
        "max_batch_size": model.max_batch_size,
        "executors": len(executors),
        "ready": sum(each.state == "ready" for each in executors),
        "error": next((each.error for each in executors if each.error), None),
    }


def _print_errors(rows: list[WorkerRow]) -> None:
    failed: list[ExecutorRow] = [each for row in rows for each in row.models if each.error]
    for each in failed:
        click.echo(f"\n{each.executor} did not start:\n{each.error}")
