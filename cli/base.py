"""Helpers that all commands share: output as tables or JSON, and the address of the running stack."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import click
import msgspec

from cli.main import printable
from cli.supervisor import state
from cli.supervisor.errors import NotRunning
from config.installation import PROGRAM
from config.secrets.masking import masked_url
from config.settings import Settings, file_is_named, load_settings

# Imported on each press of Tab; redis and rich take longer to load than a completion may.
if TYPE_CHECKING:
    from redis import Redis
    from rich.console import RenderableType
    from rich.text import Text

    from config.shards import Places

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_config_file = click.Path(dir_okay=False, path_type=Path)
config_option = click.option(
    "--config",
    "config_file",
    type=_config_file,
    help="Read models and settings from this file.  [default: that of the running `up`, else bunch.toml]",
)
# For commands that read the file before anything runs.
start_config_option = click.option(
    "--config", "config_file", type=_config_file, help="Read models and settings from this file.  [default: bunch.toml]"
)


watch_option = click.option(
    "--watch",
    "every_s",
    is_flag=False,
    flag_value=1.0,
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Refresh every SECONDS, until Ctrl-C.  [default: 1 second]",
)


def settings_for(config_file: Path | None, role: str | None = None) -> Settings:
    return load_settings(config_file=str(config_file) if config_file else None, role=role)


def settings_here(config_file: Path | None, role: str | None = None) -> Settings:
    """The settings of the file named here or by `BUNCH_CONFIG`; otherwise those of the running `up`.

    Otherwise `up --config other.toml` and `queues` would show different models.
    """
    settings = settings_for(config_file, role)
    if config_file or file_is_named():
        return settings
    running = state.read(Path(settings.state_dir))
    if running is None or not running.config_file or settings.redis_url not in {"", running.redis_url}:
        return settings
    served = settings_for(Path(running.config_file), role)
    # The folder where it was found, whatever the file itself says.
    return msgspec.structs.replace(served, state_dir=settings.state_dir)


def locate(config_file: Path | None, role: str | None = None) -> Settings:
    """Settings with the `redis_url` of the stack: the configured one, or mode and embedded server of a running `up`.

    Raises:
        NotRunning: when neither is there.
    """
    settings = settings_here(config_file, role)
    if settings.redis_url:
        return settings
    running = state.read(Path(settings.state_dir))
    if running is None or running.redis_url is None:
        raise NotRunning(
            f"no stack is running in {settings.state_dir}: start one with `{PROGRAM} up`, or set its address: "
            "BUNCH_REDIS_URL=redis://…"
        )
    # With a cluster, the rest is elsewhere.
    broker_url = settings.broker_url or running.broker_url or ""
    return msgspec.structs.replace(settings, redis_url=running.redis_url, broker_url=broker_url, mode=running.mode)


def redis_of(settings: Settings) -> Redis:
    """The Redis of the home, where everything of the fleet is."""
    from config.redis import connect

    return connect(settings.home_url)


def places_of(settings: Settings) -> Places:
    """The places of requests, for what reads or repairs them."""
    from config.shards import open_places

    return open_places(settings)


def tell_missing(down: Mapping[str, str], what: str) -> None:
    """Say on stderr which shards have not answered, and what is missing from the output because of that."""
    for name, error in down.items():
        click.echo(f"shard {name} does not answer, so {what}: {error}", err=True)


CLUSTER = (
    "is a node of a Redis Cluster, which Celery does not support; use a single server, or write "
    "BUNCH_REDIS_URL=cluster://… for the requests, with a BUNCH_BROKER_URL that is no cluster"
)


def refuse_cluster(settings: Settings) -> None:
    """Refuse a node of a cluster in a plain URL before anything is started, since Bunch would work only in part. A
    server that does not answer is left to other checks.
    """
    from redis.exceptions import RedisError

    from config.redis import connect

    for url in {settings.home_url, settings.control_url} - {""}:
        with contextlib.suppress(RedisError, ValueError), connect(url, timeout_s=2.0) as client:
            if cast("dict[str, Any]", client.info("cluster")).get("cluster_enabled"):
                raise click.ClickException(f"{masked_url(url)} {CLUSTER}")


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


Columns = Iterable[tuple[str, Callable[[Any], object]]]


def print_table(rows: Sequence[Any], columns: Columns, empty: str) -> None:
    """Print `rows` as a table."""
    show(table(rows, columns, empty))


def show(shown: RenderableType) -> None:
    """Print once; without a terminal, at full width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and not isinstance(shown, str):
        # Output to a pipe has no width limit, so nothing is folded or left out.
        console.width = max(console.width, console.measure(shown, options=console.options.update_width(1000)).maximum)
    console.print(shown)


def table(rows: Sequence[Any], columns: Columns, empty: str) -> RenderableType:
    """A table of `rows`. A column is a heading and a function of the row; numbers are right-aligned."""
    if not rows:
        return empty
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    cells = []
    for heading, value in columns:
        column = [value(row) for row in rows]
        number = all(isinstance(cell, int | float) for cell in column)
        # Ids are not folded, so that they can be copied.
        whole = number or heading == "id"
        shown.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=whole)
        cells.append([_text(cell) for cell in column])
    for row in zip(*cells, strict=True):
        shown.add_row(*map(as_written, row))
    return shown


def as_written(text: str) -> Text:
    """Text that rich shows as it is, without markup."""
    from rich.text import Text

    return Text(printable(text))


def watched(every_s: float, look: Callable[[], RenderableType]) -> None:
    """Show what `look` returns, refreshed in place, until Ctrl-C."""
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(look(), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(look(), refresh=True)


def watched_json(every_s: float, look: Callable[[], Any]) -> None:
    """The same as JSON: one line per refresh."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            click.echo(msgspec.json.encode(look()).decode())
            time.sleep(every_s)


def fail() -> None:
    """Exit 1, after the reason has been printed."""
    sys.exit(1)


def without_credentials(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    query = [each for each in parts.query.split("&") if each.partition("=")[0] not in {"password", "username"}]
    return str(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="&".join(query)).geturl())


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
