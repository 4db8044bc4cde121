"""`keys`: API keys. The database is authoritative; frontends get a copy through Redis, at once when it is available."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.base import config_option, fail, json_option, locate, print_json, print_table, redis_of, settings_here
from cli.database import key_store
from cli.supervisor.errors import NotRunning
from config.installation import PROGRAM
from config.tiers import TIERS, Tier
from tasks.accounts.api_keys import OWNER

if TYPE_CHECKING:
    from tasks.accounts.store.keys import KeyStore


@click.group()
def keys() -> None:
    """Manage API keys: create, list, revoke."""


@keys.command()
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in TIERS]),
    required=True,
    help="Tier of the requests that use the key.",
)
@click.option(
    "--owner", help="Owner. Keys of one owner see each other's requests.  [default: none; the key sees only its own]"
)
@click.option("--rpm", type=click.IntRange(min=1), help="Rate limit (requests per minute).  [default: the tier's]")
@click.option("--burst", type=click.IntRange(min=1), help="Requests that may arrive at once.  [default: the tier's]")
@click.option(
    "--expires-in-days", type=click.FloatRange(min=0, min_open=True), help="Lifetime (days).  [default: no limit]"
)
@config_option
@json_option
def create(
    tier: str,
    owner: str | None,
    rpm: int | None,
    burst: int | None,
    expires_in_days: float | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Create a key. Its secret is shown once; only the hash is stored."""
    if owner is not None and not OWNER.fullmatch(owner):
        raise click.BadParameter(
            "must be up to 64 letters, digits or . _ @ -, and begin with a letter or digit", param_hint="--owner"
        )
    settings = settings_here(config_file)
    store = key_store(settings)
    lifetime = timedelta(days=expires_in_days) if expires_in_days else None
    made = store.create(Tier(tier), _now(), owner=owner or "", rpm=rpm, burst=burst, lifetime=lifetime)
    why = _tell_frontends(config_file, store)
    if as_json:
        print_json(made)
    else:
        click.echo(f"id      {made.id}\ntier    {made.tier}\nowner   {made.owner}\nsecret  {made.secret}")
        click.echo("Keep the secret: it is not shown again. Callers send it as `Authorization: Bearer <secret>`.")
    if why:
        click.echo(f"Frontends accept it once the ops worker has published it: {why}", err=True)
    if not settings.takes_keys:
        click.echo(f"BUNCH_AUTH is {settings.auth}, so frontends do not check keys.", err=True)


@keys.command("list")
@config_option
@json_option
def list_(config_file: Path | None, as_json: bool) -> None:
    """List all keys, newest first, with the revoked and expired ones."""
    rows = key_store(settings_here(config_file)).rows(_now())
    if as_json:
        print_json(rows)
        return
    print_table(
        rows,
        [
            ("id", lambda row: row.id),
            ("owner", lambda row: row.owner),
            ("tier", lambda row: row.tier),
            ("rpm", lambda row: str(row.rpm or "–")),
            ("burst", lambda row: str(row.burst or "–")),
            ("state", lambda row: row.state),
            ("created", lambda row: row.created_at[:16]),
            ("expires", lambda row: (row.expires_at or "–")[:16]),
        ],
        empty=f"no keys; create one with `{PROGRAM} keys create --tier paid`",
    )


@keys.command()
@click.argument("key_id", metavar="ID")
@config_option
@json_option
def revoke(key_id: str, config_file: Path | None, as_json: bool) -> None:
    """Revoke a key; frontends refuse it within two seconds. Exit 1 when they could not be told."""
    store = key_store(settings_here(config_file))
    store.revoke(key_id, _now())
    why = _tell_frontends(config_file, store)
    if as_json:
        print_json({"id": key_id, "revoked": True, "published": not why})
    else:
        click.echo(f"Revoked {key_id}.")
    if why:
        click.echo(f"Running frontends accept it until the ops worker has published the change: {why}", err=True)
        fail()


def _tell_frontends(config_file: Path | None, store: KeyStore) -> str:
    """The reason why frontends could not be informed; empty when they were, or when none is running."""
    from redis.exceptions import RedisError

    from tasks.accounts.key_table import KeyTableStore

    try:
        settings = locate(config_file)
        KeyTableStore(redis_of(settings)).publish(*store.usable(_now()))
    except NotRunning:
        return ""
    except RedisError as error:
        return f"Redis could not be reached ({type(error).__name__})"
    return ""


def _now() -> datetime:
    return datetime.now(UTC)
