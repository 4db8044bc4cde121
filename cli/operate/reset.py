"""`reset`: forgets learned batch limits and closes the breakers of a model."""

from __future__ import annotations

from pathlib import Path

import click

from cli.base import config_option, fail, json_option, locate, print_json, print_table, redis_of
from cli.completion import model_names
from config.installation import PROGRAM
from tasks.celery.control_commands import RESET_FAULTS


@click.command()
@click.argument("model", shell_complete=model_names)
@config_option
@json_option
def reset(model: str, config_file: Path | None, as_json: bool) -> None:
    """Close MODEL's circuit breakers and forget its safe batch sizes. Exit 1 unless every worker has done so.

    Both are learned from faults. A fault that is still there is learned again. Its usual speed is learned anew, too.
    """
    from tasks.fleet.broadcast import REPLY_WITHIN_S, tell
    from tasks.fleet.registry_reader import Fleet

    settings = locate(config_file)
    if model not in settings.models:
        raise click.BadParameter(f"model {model!r} is not configured; use one of {', '.join(settings.models)}")
    redis = redis_of(settings)
    fleet = Fleet(redis, lease_ttl_s=settings.lease_ttl_s)
    nodes = [row.node for row in fleet.alive_of(fleet.workers())]
    answers = tell(settings, redis, RESET_FAULTS, {"model": model}, nodes)
    silent = {"error": f"no reply within {REPLY_WITHIN_S:g} s"}
    rows = [{"worker": node, **answers.get(node, silent)} for node in nodes]
    if as_json:
        print_json(rows)
    else:
        print_table(
            rows,
            [
                ("worker", lambda row: row["worker"]),
                ("breaker was", lambda row: row.get("breaker", "–")),
                ("safe batch was", lambda row: row.get("safe_size") or "–"),
                ("", lambda row: row.get("error", "reset")),
            ],
            empty=f"no worker is healthy; see `{PROGRAM} workers`",
        )
    if not rows or any("error" in row for row in rows):
        fail()
