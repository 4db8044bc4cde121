"""`pause`, `resume`, `drain`, `tune`, `reload`: changes that an operator makes to a running fleet.

A change to a model is stored first (`tasks.fleet.desired_state`), so that it applies to workers that start later, and
then sent to the running workers, so that it applies at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.base import config_option, fail, json_option, locate, print_json, print_table, redis_of
from cli.completion import model_names, node_names, policy_keys, reload_keys
from cli.plan.autotune.options import auto_options, check_auto, tune_by_itself
from config.installation import PROGRAM
from config.model_files.versions import others_of
from config.settings import Settings
from config.tiers import TIERS, Tier

if TYPE_CHECKING:
    from redis import Redis


_model = click.argument("model", shell_complete=model_names)
_tier = click.option(
    "--tier", type=click.Choice([tier.value for tier in TIERS]), help="Only this tier.  [default: all tiers]"
)


def _bad_changes_are_usage(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def checking(*args: Any, **options: Any) -> None:
        from tasks.fleet.desired_state import BadChange

        try:
            command(*args, **options)
        except BadChange as error:
            raise click.UsageError(str(error)) from error

    return checking


@click.command()
@_model
@_tier
@config_option
@json_option
def pause(model: str, tier: str | None, config_file: Path | None, as_json: bool) -> None:
    """Stop claiming MODEL in the whole fleet, until `resume`.

    The pause outlasts restarts. Batches that were claimed are finished. New requests are accepted and wait until their
    deadlines.
    """
    from tasks.fleet.desired_state import DesiredState

    settings, redis = _located(config_file, model)
    DesiredState(redis).pause(model, _tiers(tier))
    _report(settings, redis, "pause", {"model": model, "tier": tier}, as_json, _state(settings, redis, model))


@click.command()
@_model
@_tier
@config_option
@json_option
def resume(model: str, tier: str | None, config_file: Path | None, as_json: bool) -> None:
    """Claim MODEL again, after a `pause`."""
    from tasks.fleet.desired_state import DesiredState

    settings, redis = _located(config_file, model)
    DesiredState(redis).resume(model, _tiers(tier))
    _report(settings, redis, "resume", {"model": model, "tier": tier}, as_json, _state(settings, redis, model))


@click.command()
@click.argument("worker", shell_complete=node_names)
@click.option("--undo", is_flag=True, help="Let the worker claim batches again.")
@config_option
@json_option
def drain(worker: str, undo: bool, config_file: Path | None, as_json: bool) -> None:
    """Make WORKER finish its batches and claim no more.

    The worker keeps running; it can be stopped when it has finished. WORKER is a node name as `workers` shows it, or
    the part of it before the @. Exit 1 when no such worker is alive.
    """
    from tasks.fleet.broadcast import find_nodes

    settings = locate(config_file)
    redis = redis_of(settings)
    nodes = find_nodes(settings, redis, worker)
    if not nodes:
        raise click.ClickException(f"no running worker has the name {worker}; `{PROGRAM} workers` lists them")
    _report(settings, redis, "resume" if undo else "drain", {}, as_json, {}, nodes)


@click.command()
@_model
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]…", shell_complete=policy_keys)
@auto_options
@config_option
@json_option
@_bad_changes_are_usage
def tune(
    model: str, changes: tuple[str, ...], config_file: Path | None, as_json: bool, auto: bool, **options: Any
) -> None:
    """Change MODEL's batching settings in the whole fleet.

    A change applies from the next batch on and outlasts restarts. KEY= (without a value) restores the value of the
    file. Without changes, the current settings are shown. `tune minilm@2 weight=5` gives this version to 5 % of the
    owners that ask for minilm; all frontends follow within a second.

    --auto --slo-ms N searches policy, batch size and queue delay by simulation, from recent arrivals and the batch
    times that the workers have learned. It tries the best settings on the running system and reverts them if they do
    worse. Exit 1 when they were reverted, or when no settings meet the objective.
    """
    from tasks.fleet.desired_state import DesiredState, pairs, without_weight

    check_auto(auto, changes, options)
    settings, redis = _located(config_file, model)
    if auto:
        tune_by_itself(settings, redis, model, options, as_json)
        return
    wanted = pairs(changes)
    DesiredState(redis).tune(settings.models[model], wanted, others_of(settings.models, model))
    _report(
        settings,
        redis,
        "tune",
        {"model": model, "changes": without_weight(wanted)},
        as_json,
        _state(settings, redis, model),
    )


@click.command()
@_model
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]…", shell_complete=reload_keys)
@config_option
@json_option
@_bad_changes_are_usage
def reload(model: str, changes: tuple[str, ...], config_file: Path | None, as_json: bool) -> None:
    """Restart MODEL's executors one by one in the whole fleet.

    Each worker reads its file again. KEY=VALUE overrides the file: source, version, device, options (JSON),
    timeout_ms. If an executor does not load, the reload ends and the model that was loaded before goes on.
    """
    from tasks.fleet.desired_state import DesiredState, pairs

    settings, redis = _located(config_file, model)
    wanted = pairs(changes)
    generation = DesiredState(redis).reload(model, wanted).generation
    arguments = {"model": model, "changes": wanted, "generation": generation}
    _report(settings, redis, "reload_model", arguments, as_json, _state(settings, redis, model))


def _located(config_file: Path | None, model: str) -> tuple[Settings, Redis]:
    settings = locate(config_file)
    if model not in settings.models:
        raise click.ClickException(f"model {model!r} is not configured; use one of {', '.join(settings.models)}")
    return settings, redis_of(settings)


def _tiers(tier: str | None) -> tuple[Tier, ...]:
    return TIERS if tier is None else (Tier(tier),)


def _state(settings: Settings, redis: Redis, model: str) -> dict[str, Any]:
    """The desired state after the change."""
    from tasks.fleet.desired_state import TUNABLE, DesiredState, weight_of, with_desired

    desired = DesiredState(redis).read((model,))[model]
    configured = settings.models[model]
    now = with_desired(configured, desired)
    return {
        "model": model,
        "paused": [tier.value for tier in TIERS if tier in desired.paused],
        **{key: getattr(now, key) for key in (*TUNABLE, "policy_options")},
        **({"weight": weight_of(configured, desired)} if model != configured.family else {}),
        "tuned": desired.tuned,
        "generation": desired.reload.generation,
    }


def _report(
    settings: Settings,
    redis: Redis,
    command: str,
    arguments: dict[str, Any],
    as_json: bool,
    state: dict[str, Any],
    nodes: list[str] | None = None,
) -> None:
    from tasks.fleet.broadcast import tell

    replies = tell(settings, redis, command, arguments, nodes)
    silent = sorted(set(nodes or ()) - set(replies))
    refused = [node for node, reply in replies.items() if "error" in reply]
    if as_json:
        print_json({**state, "workers": replies, "silent": silent})
    else:
        for key, value in state.items():
            click.echo(f"{key:16} {_shown(value)}")
        print_table(
            sorted(replies.items()),
            [("worker", lambda row: row[0]), ("says", lambda row: _said(row[1]))],
            empty="no worker answered; workers apply the change at their start or next heartbeat",
        )
        for node in silent:
            click.echo(f"{node} did not answer", err=True)
    if refused or silent:
        fail()


def _said(reply: dict[str, Any]) -> str:
    told = reply.get("ok", reply.get("error", reply))
    return told if isinstance(told, str) else "follows"


def _shown(value: object) -> str:
    """A value in the form that people read, not Python's."""
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
