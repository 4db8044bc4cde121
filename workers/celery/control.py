"""Remote-control commands of Bunch: `celery -A tasks.app control pause minilm`, `manage.py pause minilm`.

| command | does |
|---|---|
| `bunch_stats` | this worker: its executors, the settings of each model, paused and tuned ones |
| `explain ID…` | the history of each request, from `tasks.observability.explain` |
| `pause MODEL [TIER]` | claims nothing more of it, in the whole fleet |
| `resume [MODEL [TIER]]` | claims again; without a model: ends a drain |
| `drain` | this worker claims nothing more and finishes its batches |
| `tune MODEL key=value…` | changes policy, batch size or window, in the whole fleet |
| `reload_model MODEL [key=value…]` | restarts every executor, one at a time, from the file or another source |
| `reset_faults MODEL` | closes its breaker and forgets its safe batch size |
| `unload_model MODEL` | unloads a model that is loaded on demand, until requests wait for it again |
| `pool_restart` | Celery's command: restarts this worker's executors, one at a time |

Celery's own commands that have no effect on batches reply so (`NO_EFFECT`), where Celery would reply "ok".

Commands run on the worker's main thread, which batches do not use: each is one or two round trips to Redis. A change
for the fleet is stored first; workers that get the command apply it at once, the others with their next heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

from celery import bootsteps
from celery.worker.control import Panel

from config.installation import PROGRAM
from config.model_files.versions import others_of
from config.tiers import TIERS, Tier
from tasks.celery.control_commands import COMMANDS, RESET_FAULTS, UNLOAD_MODEL
from tasks.fleet.desired_state import BadChange, DesiredState, pairs
from workers.runner import WorkerRunner

Reply = dict[str, Any]

_CLAIMED = "model queues are claimed in batches, not consumed"
# Celery would reply "ok" to these; the text says what to use instead.
NO_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "add_consumer": f"{_CLAIMED}, those of the worker's own models; `{PROGRAM} resume MODEL` ends a pause",
        "cancel_consumer": f"{_CLAIMED}; use `{PROGRAM} pause MODEL`",
        "rate_limit": f"batches have no rate limit; set one per API key (`{PROGRAM} keys create --rpm`)",
        "time_limit": "the time limit of a batch is `timeout_ms` of its model in bunch.toml",
        "pool_grow": "batches do not run in Celery's pool; set `instances` of a model in bunch.toml",
        "pool_shrink": "batches do not run in Celery's pool; set `instances` of a model in bunch.toml",
        "autoscale": f"batches do not run in Celery's pool; `{PROGRAM} autoscale` scales the workers",
        "revoke_by_stamped_headers": "stamps are ignored; revoke by task id",
    }
)


class NoEffectStep(bootsteps.Step):
    """Replaces Celery's commands in the worker only, so clients still know them. It runs after `OwnQueuesStep`."""

    requires = ("tasks.celery.own_queues:OwnQueuesStep",)

    def create(self, worker: Any) -> None:
        for name, why in NO_EFFECT.items():
            Panel.data[name] = _without_effect(name, why)


def _without_effect(name: str, why: str) -> Callable[..., Reply]:
    def refuse(state: Any, *_: Any, **__: Any) -> Reply:
        return {"error": f"{name} has no effect here: {why}"}

    return refuse


def _command(name: str) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    """Register in Celery's panel, as `tasks.celery.control_commands` lists it."""
    register: Callable[[Callable[..., Reply]], Callable[..., Reply]] = Panel.register(**COMMANDS[name].options(name))
    return register


def _replies(command: Callable[..., object]) -> Callable[..., Reply]:
    """Reply `{"ok": …}`, or `{"error": …}` for an error of the sender; Celery would reply with the exception's
    `repr`.
    """

    @wraps(command)
    def replying(state: Any, *args: Any, **options: Any) -> Reply:
        try:
            return {"ok": command(state, *args, **options)}
        except BadChange as error:
            return {"error": str(error)}

    return replying


@_command("bunch_stats")
def bunch_stats(state: Any, **_: Any) -> Reply:
    """The worker's executors, models and desired state."""
    return _runner(state).info()


@_command("explain")
def explain_requests(state: Any, ids: Iterable[str] = (), **_: Any) -> Reply:
    """Show where the time of requests went, by request id or task id."""
    names = [ids] if isinstance(ids, str) else list(ids)
    return {each: _runner(state).explain(each) for each in names}


@_command("pause")
@_replies
def pause(state: Any, model: str, tier: str | None = None, **_: Any) -> str:
    """Claim nothing more of a model, or of one of its tiers."""
    runner = _serving(state, model)
    DesiredState(runner.redis).pause(model, _tiers(tier))
    runner.reconciler.sync()
    return f"{model} is paused" + (f" for {tier}" if tier else "")


@_command("resume")
@_replies
def resume(state: Any, model: str | None = None, tier: str | None = None, **_: Any) -> str:
    """Claim again; without a model: this worker, after a drain."""
    if model is None:
        _runner(state).reconciler.resume()
        return "claiming again"
    runner = _serving(state, model)
    DesiredState(runner.redis).resume(model, _tiers(tier))
    runner.reconciler.sync()
    return f"{model} is resumed" + (f" for {tier}" if tier else "")


@_command("drain")
@_replies
def drain(state: Any, **_: Any) -> str:
    """Claim nothing more in this worker, and finish its batches."""
    runner = _runner(state)
    runner.reconciler.drain()
    in_hand = sum(loop.in_hand for loop in runner.reconciler.loops)
    return f"draining; {in_hand} batch{'' if in_hand == 1 else 'es'} still running"


@_command("tune")
@_replies
def tune(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **_: Any) -> Any:
    """Change settings of a model's policy; an empty value restores that of the file."""
    runner = _serving(state, model)
    models = runner.models
    DesiredState(runner.redis).tune(models[model], _changes(model, changes), others_of(models, model))
    runner.reconciler.sync()
    return runner.reconciler.describe()[model]


@_command("reload_model")
@_replies
def reload_model(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **more: Any) -> str:
    """Restart the executors of a model, one at a time."""
    runner = _serving(state, model)
    controls = DesiredState(runner.redis)
    # One reload for the whole fleet, however many workers get the command.
    generation = more.get("generation")
    if generation is None or controls.read((model,))[model].reload.generation < int(generation):
        generation = controls.reload(model, _changes(model, changes)).generation
    runner.reconciler.sync()
    return f"reload {generation} of {model} begins"


@_command("pool_restart")
@_replies
def pool_restart(state: Any, **_: Any) -> str:
    """Restart the executors of this worker, one at a time."""
    _runner(state).reconciler.restart()
    return "restart of the executors begins"


@_command(RESET_FAULTS)
def reset_faults(state: Any, model: str, **_: Any) -> Reply:
    """Close a model's circuit breaker and forget its safe batch size."""
    try:
        return {"ok": "reset", **_serving(state, model).reset(model)}
    except BadChange as error:
        return {"error": str(error)}


@_command(UNLOAD_MODEL)
@_replies
def unload_model(state: Any, model: str, **_: Any) -> str:
    """Unload a model that is loaded on demand, until requests wait for it again."""
    if not _serving(state, model).residency.dismiss(model):
        raise BadChange(f'{model} stays loaded; set residency = "on_demand" in bunch.toml to let it be unloaded')
    return f"{model} is unloaded when its batches are finished"


def _runner(state: Any) -> WorkerRunner:
    runner: WorkerRunner = state.app.bunch_runner
    return runner


def _serving(state: Any, model: str) -> WorkerRunner:
    runner = _runner(state)
    if model not in runner.models:
        raise BadChange(f"model {model!r} is not served here; the models are {', '.join(runner.models)}")
    return runner


def _tiers(tier: str | None) -> tuple[Tier, ...]:
    if tier is None:
        return TIERS
    try:
        return (Tier(tier),)
    except ValueError:
        raise BadChange(f"unknown tier {tier!r}; use one of {', '.join(each.value for each in TIERS)}") from None


def _changes(model: str, given: Mapping[str, Any] | Iterable[str]) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    # `celery control` repeats its last fixed argument when nothing follows (`bin.control._consume_arguments`).
    return pairs(each for each in given if each != model)
