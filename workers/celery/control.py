"""Celery's remote control in Bunch's words: `celery -A tasks.app control pause minilm`, `manage.py pause minilm`.

| command | does |
|---|---|
| `bunch_stats` | this worker: executors, what it serves each model with, what is paused or tuned |
| `explain ID…` | one request's life each, as `tasks.observability.explain` tells it |
| `pause MODEL [TIER]` | no more claims of it, in the whole fleet |
| `resume [MODEL [TIER]]` | claims again; without a model: the end of a drain |
| `drain` | this worker claims nothing more and finishes what it has |
| `tune MODEL key=value…` | another policy, batch size or window, in the whole fleet |
| `reload_model MODEL [key=value…]` | every executor anew, one at a time, from the file or another source |
| `reset_faults MODEL` | its breaker closed, the batch size that its memory had room for forgotten |
| `pool_restart` | Celery's word for it: this worker's executors anew, one at a time |

Commands of Celery's own that have no effect on batches say so (`NO_EFFECT`), where Celery would say "ok".

They run on the worker's main thread, which no batch keeps busy: each is a round trip or two to Redis. What concerns the
fleet is written down first, then followed at once by whoever heard it, and with the next heartbeat by everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

from celery import bootsteps
from celery.worker.control import Panel

from config.tiers import TIERS, Tier
from tasks.celery.control_commands import COMMANDS, RESET_FAULTS
from tasks.fleet.desired_state import BadChange, DesiredState, pairs
from workers.runner import WorkerRunner

Reply = dict[str, Any]

_CLAIMED = "model queues are claimed in batches, not consumed"
# What Celery answers with "ok", and what does it instead.
NO_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "add_consumer": f"{_CLAIMED}, those of the worker's own models; `manage.py resume MODEL` ends a pause",
        "cancel_consumer": f"{_CLAIMED}; use `manage.py pause MODEL`",
        "rate_limit": "batches have no rate limit; set one per API key (`manage.py keys create --rpm`)",
        "time_limit": "the time limit of a batch is `timeout_ms` of its model in bunch.toml",
        "pool_grow": "batches do not run in Celery's pool; set `instances` of a model in bunch.toml",
        "pool_shrink": "batches do not run in Celery's pool; set `instances` of a model in bunch.toml",
        "autoscale": "batches do not run in Celery's pool; `manage.py autoscale` scales the workers",
        "revoke_by_stamped_headers": "stamps are ignored; revoke by task id",
    }
)


class NoEffectStep(bootsteps.Step):
    """In the worker alone: for whoever only asks, Celery's commands are what they were. Goes after `OwnQueuesStep`."""

    requires = ("tasks.celery.own_queues:OwnQueuesStep",)

    def create(self, worker: Any) -> None:
        for name, why in NO_EFFECT.items():
            Panel.data[name] = _without_effect(name, why)


def _without_effect(name: str, why: str) -> Callable[..., Reply]:
    def refuse(state: Any, *_: Any, **__: Any) -> Reply:
        return {"error": f"{name} has no effect here: {why}"}

    return refuse


def _command(name: str) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    """In Celery's panel, as `tasks.celery.control_commands` lists it."""
    register: Callable[[Callable[..., Reply]], Callable[..., Reply]] = Panel.register(**COMMANDS[name].options(name))
    return register


def _replies(command: Callable[..., object]) -> Callable[..., Reply]:
    """`{"ok": …}`, or `{"error": …}` for what its sender can mend; Celery would reply with the exception's `repr`."""

    @wraps(command)
    def replying(state: Any, *args: Any, **options: Any) -> Reply:
        try:
            return {"ok": command(state, *args, **options)}
        except BadChange as error:
            return {"error": str(error)}

    return replying


@_command("bunch_stats")
def bunch_stats(state: Any, **_: Any) -> Reply:
    """What this worker runs, serves, and was asked for."""
    return _runner(state).info()


@_command("explain")
def explain_requests(state: Any, ids: Iterable[str] = (), **_: Any) -> Reply:
    """Where the time of requests went, by request id or task id."""
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
    """Claim nothing more in this worker, and finish what it has in hand."""
    runner = _runner(state)
    runner.reconciler.drain()
    in_hand = sum(loop.in_hand for loop in runner.reconciler.loops)
    return f"draining; {in_hand} batch{'' if in_hand == 1 else 'es'} still running"


@_command("tune")
@_replies
def tune(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **_: Any) -> Any:
    """Change what the policy of a model goes by; an empty value: back to what the file says."""
    runner = _serving(state, model)
    DesiredState(runner.redis).tune(runner.models[model], _changes(model, changes))
    runner.reconciler.sync()
    return runner.reconciler.describe()[model]


@_command("reload_model")
@_replies
def reload_model(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **more: Any) -> str:
    """Start the executors of a model anew, one at a time."""
    runner = _serving(state, model)
    controls = DesiredState(runner.redis)
    # One reload for the whole fleet, however many workers hear of it.
    generation = more.get("generation")
    if generation is None or controls.read((model,))[model].reload.generation < int(generation):
        generation = controls.reload(model, _changes(model, changes)).generation
    runner.reconciler.sync()
    return f"reload {generation} of {model} begins"


@_command("pool_restart")
@_replies
def pool_restart(state: Any, **_: Any) -> str:
    """Start the executors of this worker anew, one at a time."""
    _runner(state).reconciler.restart()
    return "restart of the executors begins"


@_command(RESET_FAULTS)
def reset_faults(state: Any, model: str, **_: Any) -> Reply:
    """Close a model's circuit breaker and forget the batch size that its memory had room for."""
    try:
        return {"ok": "reset", **_serving(state, model).reset(model)}
    except BadChange as error:
        return {"error": str(error)}


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
