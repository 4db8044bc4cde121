"""`autoscale`: computes the number of workers that the load needs and, under `up`, starts or drains workers."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from batching.policy import ScalingRules
from cli.base import config_option, json_option, locate, places_of
from cli.supervisor import state as up

if TYPE_CHECKING:
    from cli.operate.autoscaler import Actor, Autoscaler
    from tasks.fleet.scaling import ScaleBoard, ScaleRow


@click.command()
@click.option(
    "--min",
    "least",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Minimum number of workers, of each pool; 0 with --export-only: none while nothing asks.",
)
@click.option(
    "--max",
    "most",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of workers, of each pool.",
)
@click.option(
    "--limits",
    multiple=True,
    metavar="POOL=MIN:MAX",
    help="Limits of one pool, instead of --min and --max; can be given several times.",
)
@click.option(
    "--interval",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Time between two decisions (seconds).",
)
@click.option(
    "--cold-start",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Time that a worker needs to start (seconds).",
)
@click.option(
    "--cool-down",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Minimum time from a change to the next scale-down (seconds).",
)
@click.option(
    "--idle-for",
    default=900.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Scale down after this long with low utilisation (seconds).",
)
@click.option(
    "--drain",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Scale up when the backlog needs longer than this to drain (seconds) …",
)
@click.option(
    "--drain-for",
    default=15.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="… and has needed longer for at least this long (seconds).",
)
@click.option("--dry-run", is_flag=True, help="Print the decisions. Change and publish nothing.")
@click.option(
    "--export-only", is_flag=True, help="Publish the wanted number of workers; leave the scaling to KEDA or an HPA."
)
@click.option(
    "--duration", type=click.FloatRange(min=0), help="Stop after this long (seconds); 0 decides once.  [default: never]"
)
@config_option
@json_option
def autoscale(
    least: int,
    most: int,
    limits: tuple[str, ...],
    interval: float,
    cold_start: float,
    cool_down: float,
    idle_for: float,
    drain: float,
    drain_for: float,
    dry_run: bool,
    export_only: bool,
    duration: float | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Scale the number of workers with the load, until Ctrl-C.

    Each pool is decided by itself. Under `up` it starts and drains workers. Elsewhere it only publishes how many
    workers are wanted, in /metrics (bunch_workers_wanted) and /internal/scale. --json prints one object per decision.
    """
    from cli.operate.autoscaler import Autoscaler, Exported, Gauge, LocalUp, Nobody
    from tasks.fleet.queue_reader import QueueReader
    from tasks.fleet.registry_reader import Fleet
    from tasks.fleet.scaling import ScaleBoard
    from tasks.observability.metrics import SharedMetrics

    try:
        rules = ScalingRules(
            least=least,
            most=most,
            cold_start_s=cold_start,
            after_down_s=cool_down,
            idle_for_s=idle_for,
            drain_s=drain,
            drain_for_s=drain_for,
        )
        own = {pool: replace(rules, least=low, most=high) for pool, low, high in map(_limits, limits)}
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    settings = locate(config_file)
    if unknown := own.keys() - settings.pools.keys():
        known = ", ".join(settings.pools) or "none"
        raise click.UsageError(f"--limits: there is no pool {', '.join(sorted(unknown))}; pools are: {known}")
    if settings.mode == "collocated":
        raise click.UsageError("collocated mode has no workers to scale; BUNCH_MODE=durable has")
    places = places_of(settings)
    redis = places.home.redis
    state_dir = Path(settings.state_dir).resolve()
    acts = not dry_run and not export_only and up.read(state_dir) is not None
    if acts and not all(each.least for each in (rules, *own.values())):
        raise click.UsageError("a minimum of 0 needs --export-only: `up` always has a worker")
    fleet = Fleet(redis, lease_ttl_s=settings.lease_ttl_s)
    gauge = Gauge(settings, fleet, QueueReader(places, fleet), SharedMetrics(redis), time.monotonic)
    board = ScaleBoard(redis)
    actor: Actor = LocalUp(state_dir) if acts else Nobody()
    if export_only:
        actor = Exported(_last(board), cool_down, time.monotonic)
    scaler = Autoscaler(rules, gauge, actor, None if dry_run else board, own)
    ends_at = time.monotonic() + (float("inf") if duration is None else duration)
    try:
        while True:
            _look(scaler, as_json=as_json)
            if time.monotonic() + interval > ends_at:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _limits(text: str) -> tuple[str, int, int]:
    """`small=0:14` as a pool and its limits. Raises ValueError."""
    found = re.fullmatch(r"([a-z0-9_-]+)=(\d+):(\d+)", text)
    if found is None:
        raise ValueError(f"--limits {text}: must be POOL=MIN:MAX, such as small=0:14")
    return found[1], int(found[2]), int(found[3])


def _last(board: ScaleBoard) -> ScaleRow | None:
    from redis.exceptions import RedisError

    try:
        return board.read()
    except RedisError:
        return None


def _look(scaler: Autoscaler, *, as_json: bool) -> None:
    from redis.exceptions import RedisError

    try:
        row = scaler.step(time.monotonic())
    except RedisError as error:
        click.echo(f"cannot read the state of the fleet, so nothing was decided: {error}", err=True)
        return
    for each in row.groups or (row,):
        click.echo(msgspec.json.encode(each).decode() if as_json else _line(each))


def _line(row: ScaleRow) -> str:
    drains = "never" if row.drain_s is None else f"{row.drain_s:.1f} s"
    fleet = f"{row.ready} workers" + (f" and {row.starting} starting" if row.starting else "")
    seen = f"{fleet}, {row.depth} waiting (draining takes {drains}), {row.use:.0%} busy"
    seen = f"{row.pool}: {seen}" if row.pool else seen
    return f"{seen}: scale to {row.wanted}, {row.reason}" if row.reason else f"{seen}: no change"
