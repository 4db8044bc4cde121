"""`explain`: the history of one request, by its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.base import config_option, fail, json_option, locate, places_of, print_json, print_table
from cli.main import printable

_BAR = 40


@click.command()
@click.argument("request_id", metavar="REQUEST_ID")
@config_option
@json_option
def explain(request_id: str, config_file: Path | None, as_json: bool) -> None:
    """Show where the time of one request went.

    It shows the stages, the batch and its other requests, earlier attempts, and the error. REQUEST_ID is the
    X-Request-Id or the task id. Requests are kept for an hour, failed ones for a day, or until BUNCH_EXPLAIN_MAX_BYTES
    is reached. Exit 1 when the request is unknown or has failed.
    """
    from tasks.observability.explain import explain as look_up
    from tasks.observability.explain import why_unknown

    settings = locate(config_file)
    places = places_of(settings)
    about = look_up(places, settings.models, request_id)
    if about is None:
        raise click.ClickException(why_unknown(places.home.redis, request_id))
    if as_json:
        print_json(about)
    else:
        _show(about)
    if about["status"] == "failed":
        fail()


def _show(about: dict[str, Any]) -> None:
    for name in ("request_id", "task_id", "status", "model", "tier", "attempt", "where"):
        if about[name] is not None:
            _line(name, about[name])
    if about.get("payload_bytes"):
        _line("payload", f"{about['payload_bytes']:,} bytes, beside the queue")
    if about["error"]:
        _line("error", f"{about['error']['code']}: {about['error']['message']}")
    if about["callback"]:
        told = about["callback"]
        why = f": {told['error']}" if told["error"] else ""
        _line("callback", f"to {told['host']}, {told['status']} ({told['attempts']} attempts){why}")
    if about["stages"]:
        _show_stages(about)
    if about["batch"]:
        _show_batch(about["batch"])
    if about["attempts"]:
        click.echo("\nearlier attempts")
        print_table(
            about["attempts"],
            [
                ("attempt", lambda row: row["attempt"] or 0),
                ("batch", lambda row: row["batch_id"]),
                ("size", lambda row: row["size"]),
                ("executor", lambda row: row["executor"]),
                ("ended", lambda row: row["ended"]),
            ],
            empty="",
        )


def _show_stages(about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    longest = max((each["ms"] or 0.0 for each in about["stages"]), default=0.0) or 1.0
    stages = Table(box=None, pad_edge=False, header_style="bold")
    stages.add_column("stage")
    stages.add_column("ms", justify="right")
    stages.add_column("")
    for each in about["stages"]:
        known = each["ms"] is not None
        bar = "█" * round((each["ms"] or 0.0) / longest * _BAR)
        stages.add_row(each["stage"], f"{each['ms']:,.3f}" if known else "–", Text(bar))
    stages.add_row("total", f"{about['accounted_ms']:,.3f}", "")
    click.echo()
    Console().print(stages)


def _show_batch(batch: dict[str, Any]) -> None:
    click.echo(f"\nbatch       {batch['id']}, {batch['size']} requests")
    for name, key in (("released", "reason"), ("worker", "worker"), ("executor", "executor"), ("passes", "passes")):
        if batch.get(key):
            _line(name, batch[key])
    if batch.get("ended"):
        _line("ended", batch["ended"])
    if batch["neighbours"]:
        print_table(
            batch["neighbours"],
            [
                ("neighbour", lambda row: row["task_id"]),
                ("tier", lambda row: row["tier"]),
                ("attempt", lambda row: row["attempt"]),
                ("outcome", lambda row: row["outcome"]),
            ],
            empty="",
        )


def _line(name: str, value: object) -> None:
    click.echo(f"{name:11} {printable(str(value))}")
