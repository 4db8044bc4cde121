"""`status`: shows the processes of `up`."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from cli.base import fail, json_option, places_of, print_json, print_table, settings_for, settings_here
from cli.supervisor import state
from config.errors import SettingsError
from config.installation import PROGRAM
from config.redis_url import is_cluster
from config.secrets.masking import masked_url


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show the processes of `up`: role, pid, state, uptime. Exit 1 when one is not running."""
    state_dir = Path(settings_for(None).state_dir)
    now = state.read(state_dir)
    shown = now or state.UpState()
    if as_json:
        print_json(_for_scripts(shown))
    else:
        print_table(
            shown.processes,
            [
                ("role", lambda row: row.role),
                ("name", lambda row: row.name),
                ("pid", lambda row: str(row.pid or "–")),
                ("state", lambda row: row.state),
                ("uptime", lambda row: _uptime(row.pid)),
                ("restarts", lambda row: row.restarts),
            ],
            empty=f"no stack is running in {state_dir}; start one with `{PROGRAM} up`",
        )
        for name, url in (("http", shown.url), ("flower", shown.flower_url), ("redis", shown.redis_url)):
            if url:
                click.echo(f"{name:7} {masked_url(url)}")
        if shown.processes and shown.mode == "durable":
            _tell_payloads(shown.redis_url or "")
    if not shown.processes or any(row.state != "running" for row in shown.processes):
        fail()


def _tell_payloads(redis_url: str) -> None:
    """The large payloads in Redis, if there are any, and it answers."""
    from redis.exceptions import RedisError

    from batching.blobs.store import open_blobs

    live, kept = 0, 0
    try:
        settings = msgspec.structs.replace(settings_here(None), redis_url=redis_url)
        for place in places_of(settings):
            usage = open_blobs(settings, place.redis, place.keys).usage()
            live, kept = live + usage.all_bytes - usage.kept_bytes, kept + usage.kept_bytes
    except (RedisError, SettingsError):
        return
    if live or kept:
        click.echo(f"payloads {live / 1e6:.1f} MB of requests and results, {kept / 1e6:.1f} MB of dead letters")


def _for_scripts(shown: state.UpState) -> state.UpState:
    """Adds the passwords of embedded servers, which are new at each start; others are in the configuration."""
    embedded = any(row.role == "redis" for row in shown.processes)
    # With a cluster the broker is embedded too; otherwise it may be another server.
    brokers = {shown.broker_url} if embedded and is_cluster(shown.redis_url or "") else set()
    told = {shown.redis_url} | brokers if embedded else set()

    def of(url: str | None) -> str | None:
        return url if url is None or url in told else masked_url(url)

    return msgspec.structs.replace(shown, redis_url=of(shown.redis_url), broker_url=of(shown.broker_url))


def _uptime(pid: int | None) -> str:
    import psutil

    try:
        seconds = time.time() - psutil.Process(pid).create_time() if pid else None
    except psutil.Error:
        seconds = None
    if seconds is None:
        return "–"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
