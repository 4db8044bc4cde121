"""`dlq`: requests that were given up, and the commands to inspect, replay and drop them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cli.base import config_option, fail, json_option, locate, places_of, print_json, print_table, tell_missing
from cli.main import printable
from config.installation import PROGRAM
from config.settings import Settings

if TYPE_CHECKING:
    from tasks.fleet.dead_letters import DeadLetters
    from tasks.protocol.results import DeadLetter


_ids = click.argument("ids", nargs=-1, metavar="ID…")
_MAX_SHOWN = 4_000


@click.group()
def dlq() -> None:
    """Manage the dead-letter queue: list, show, replay, drop."""


@dlq.command("list")
@config_option
@json_option
def list_(config_file: Path | None, as_json: bool) -> None:
    """List the dead letters, newest first."""
    rows, down = _letters(locate(config_file)).read()
    tell_missing(down, "its dead letters are not listed")
    if as_json:
        print_json([_row(each) for each in rows])
        return
    print_table(
        rows,
        [
            ("id", lambda row: row.id),
            ("model", lambda row: row.model),
            ("tier", lambda row: row.tier),
            ("attempts", lambda row: row.attempts),
            ("failed", lambda row: _when(row.failed_at)),
            ("reason", lambda row: row.reason),
        ],
        empty="no dead letters",
    )


@dlq.command()
@click.argument("task_id", metavar="ID")
@config_option
@json_option
def show(task_id: str, config_file: Path | None, as_json: bool) -> None:
    """Show one dead letter: its reason, its traceback and its input."""
    found = _letters(locate(config_file)).show(task_id)
    if found is None:
        raise click.ClickException(f"dead letter {task_id} does not exist; `{PROGRAM} dlq list` lists them")
    record, message = found
    payload = _payload(message)
    if as_json:
        print_json({**msgspec.to_builtins(record), **payload})
        return
    for name, value in msgspec.to_builtins(record).items():
        if name != "traceback":
            click.echo(f"{name:12} {_when(value) if name == 'failed_at' else printable(str(value))}")
    for name, raw in payload.items():
        click.echo(f"\n{name}\n{_shortened(raw if isinstance(raw, str) else _spelt_out(raw))}")
    if record.traceback:
        click.echo(f"\ntraceback\n{printable(record.traceback.rstrip())}")


@dlq.command()
@_ids
@click.option("--all", "everything", is_flag=True, help="Act on every dead letter.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=1),
    help="New deadline of each request (milliseconds).  [default: BUNCH_RESULT_TTL_MS]",
)
@config_option
@json_option
def replay(
    ids: tuple[str, ...], everything: bool, timeout_ms: int | None, config_file: Path | None, as_json: bool
) -> None:
    """Queue dead letters again, under their own ids, with a fresh count of attempts. Exit 1 when one cannot be."""
    _require_one_of(ids, everything)
    from batching.blobs.store import BlobGoneError

    settings = locate(config_file)
    letters = _letters(settings)
    # No connection waits for these requests, so the depth of the queue does not matter; and the deadline must be long
    # enough, because expired requests do not become dead letters again.
    time_s = (timeout_ms or settings.result_ttl_ms) / 1000

    def again(task_id: str) -> str:
        found = letters.show(task_id)
        if found is None:
            return "this dead letter does not exist"
        if found[0].model not in settings.models:
            return f"model {found[0].model} is not served; add it to bunch.toml, or drop this dead letter"
        try:
            queued = letters.replay(task_id, time_s, settings.result_ttl_s)
        except BlobGoneError:
            return "its payload is not there any more; drop it, and send the request again"
        return "" if queued else "it was replayed or dropped meanwhile"

    _each(letters, ids, everything, again, "replayed", as_json)


@dlq.command()
@_ids
@click.option("--all", "everything", is_flag=True, help="Act on every dead letter.")
@config_option
@json_option
def drop(ids: tuple[str, ...], everything: bool, config_file: Path | None, as_json: bool) -> None:
    """Delete dead letters. Exit 1 when one of the ids does not exist."""
    _require_one_of(ids, everything)
    letters = _letters(locate(config_file))
    _each(
        letters,
        ids,
        everything,
        lambda task_id: "" if letters.drop(task_id) else "this dead letter does not exist",
        "dropped",
        as_json,
    )


def _letters(settings: Settings) -> DeadLetters:
    from tasks.fleet.dead_letters import DeadLetters
    from tasks.protocol.outputs import PlacedBlobs

    return DeadLetters(places := places_of(settings), PlacedBlobs(places, settings))


def _require_one_of(ids: tuple[str, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise click.UsageError("give either the ids of dead letters or --all")


def _each(
    letters: DeadLetters,
    ids: tuple[str, ...],
    everything: bool,
    act: Callable[[str], str],
    done: str,
    as_json: bool,
) -> None:
    """Apply `act` to each letter; it returns the reason when it could not, or ""."""
    known, down = letters.all_ids() if everything else (list(ids), {})
    failed = {
        task_id: f"its shard does not answer: {' '.join(str(why).split())}" if isinstance(why, Exception) else why
        for task_id, why in letters.for_each(known, act).items()
    }
    succeeded = [task_id for task_id, why in failed.items() if not why]
    refused = {task_id: why for task_id, why in failed.items() if why}
    if as_json:
        print_json({done: succeeded, "failed": refused})
    else:
        for task_id in succeeded:
            click.echo(f"{task_id} {done}")
        for task_id, why in refused.items():
            click.echo(f"{task_id}: {why}", err=True)
        if not failed:
            click.echo("no dead letters")
    tell_missing(down, f"its dead letters are not {done}")
    if refused or down:
        fail()


def _row(record: DeadLetter) -> dict[str, object]:
    """The fields that the contract promises for each letter; `show` has the rest."""
    return {
        "id": record.id,
        "model": record.model,
        "tier": record.tier,
        "reason": record.reason,
        "attempts": record.attempts,
        "failed_at": record.failed_at,
    }


def _payload(message: bytes) -> dict[str, msgspec.Raw | str]:
    """The input and parameters as they were sent; for an unreadable message, the message itself."""
    from batching.ports import UnreadableMessage
    from tasks.protocol.messages import read_payload

    try:
        input, parameters = read_payload(message)
    except UnreadableMessage:
        return {"message": message.decode(errors="replace")}
    return {"input": msgspec.Raw(input), "parameters": msgspec.Raw(parameters)}


def _spelt_out(raw: msgspec.Raw) -> str:
    """Indented JSON, with escaped characters shown as they are."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.decode(raw)), indent=2).decode()


def _shortened(text: str) -> str:
    more = len(text) - _MAX_SHOWN
    return printable(text if more <= 0 else f"{text[:_MAX_SHOWN]}… {more:,} more characters; --json shows all of it")


def _when(epoch_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_s))
