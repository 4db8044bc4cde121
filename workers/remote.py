"""Celery's remote control in Bunch's words: `celery -A tasks.app control pause minilm`, `manage.py pause minilm`.

| command | does |
|---|---|
| `bunch_stats` | this worker: executors, what it serves each model with, what is paused or tuned |
| `explain ID…` | one request's life each, as `tasks.explain` tells it |
| `pause MODEL [TIER]` | no more claims of it, in the whole fleet |
| `resume [MODEL [TIER]]` | claims again; without a model: the end of a drain |
| `drain` | this worker claims nothing more and finishes what it has |
| `tune MODEL key=value…` | another policy, batch size or window, in the whole fleet |
| `reload_model MODEL [key=value…]` | every executor anew, one at a time, from the file or another source |
| `pool_restart` | Celery's word for it: this worker's executors anew, one at a time |

They run on the worker's main thread, which no batch keeps busy: each is a round trip or two to Redis. What concerns the
fleet is written down first, then followed at once by whoever heard it, and with the next heartbeat by everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from celery.worker.control import control_command, inspect_command

from config.tiers import TIERS, Tier
from tasks.controls import BadChange, Controls, pairs
from workers.runner import WorkerRunner

Reply = dict[str, Any]


def _replies(command: Callable[..., object]) -> Callable[..., Reply]:
    """`{"ok": …}`, or `{"error": …}` for what its sender can mend; Celery would reply with the exception's `repr`."""

    @wraps(command)
    def replying(state: Any, *args: Any, **options: Any) -> Reply:
        try:
            return {"ok": command(state, *args, **options)}
        except BadChange as error:
            return {"error": str(error)}

    return replying


@inspect_command(default_timeout=1.0)
def bunch_stats(state: Any, **_: Any) -> Reply:
    """What this worker runs, serves, and was asked for."""
    return _runner(state).info()


@inspect_command(name="explain", variadic="ids", signature="[id1 [id2 [… [idN]]]]", default_timeout=2.0)
def explain_requests(state: Any, ids: Iterable[str] = (), **_: Any) -> Reply:
    """Where the time of requests went, by request id or task id."""
    names = [ids] if isinstance(ids, str) else list(ids)
    return {each: _runner(state).explain(each) for each in names}


@control_command(args=[("model", str), ("tier", str)], signature="<model> [tier]")
@_replies
def pause(state: Any, model: str, tier: str | None = None, **_: Any) -> str:
    """Claim nothing more of a model, or of one of its tiers."""
    runner = _serving(state, model)
    Controls(runner.redis).pause(model, _tiers(tier))
    runner.steering.sync()
    return f"{model} is paused" + (f" for {tier}" if tier else "")


@control_command(args=[("model", str), ("tier", str)], signature="[model [tier]]")
@_replies
def resume(state: Any, model: str | None = None, tier: str | None = None, **_: Any) -> str:
    """Claim again; without a model: this worker, after a drain."""
    if model is None:
        _runner(state).steering.resume()
        return "claims again"
    runner = _serving(state, model)
    Controls(runner.redis).resume(model, _tiers(tier))
    runner.steering.sync()
    return f"{model} is claimed again" + (f" for {tier}" if tier else "")


@control_command()
@_replies
def drain(state: Any, **_: Any) -> str:
    """Claim nothing more in this worker, and finish what it has in hand."""
    runner = _runner(state)
    runner.steering.drain()
    in_hand = sum(loop.in_hand for loop in runner.steering.loops)
    return f"draining; {in_hand} batch{'' if in_hand == 1 else 'es'} in hand"


@control_command(args=[("model", str)], variadic="changes", signature="<model> [key=value …]")
@_replies
def tune(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **_: Any) -> Any:
    """Change what the policy of a model goes by; an empty value: back to what the file says."""
    runner = _serving(state, model)
    Controls(runner.redis).tune(runner.models[model], _changes(model, changes))
    runner.steering.sync()
    return runner.steering.describe()[model]


@control_command(args=[("model", str)], variadic="changes", signature="<model> [key=value …]")
@_replies
def reload_model(state: Any, model: str, changes: Mapping[str, Any] | Iterable[str] = (), **more: Any) -> str:
    """Start the executors of a model anew, one at a time."""
    runner = _serving(state, model)
    controls = Controls(runner.redis)
    # One reload for the whole fleet, however many workers hear of it.
    generation = more.get("generation")
    if generation is None or controls.read((model,))[model].reload.generation < int(generation):
        generation = controls.reload(model, _changes(model, changes)).generation
    runner.steering.sync()
    return f"reload {generation} of {model} begins"


@control_command()
@_replies
def pool_restart(state: Any, **_: Any) -> str:
    """Start the executors of this worker anew, one at a time."""
    _runner(state).steering.restart()
    return "restart of the executors begins"


def register() -> None:
    """For whoever makes a worker's app: importing this module has put the commands into Celery's panel."""


def _runner(state: Any) -> WorkerRunner:
    runner: WorkerRunner = state.app.bunch_runner
    return runner


def _serving(state: Any, model: str) -> WorkerRunner:
    runner = _runner(state)
    if model not in runner.models:
        raise BadChange(f"no model {model!r} is served here; {', '.join(runner.models)} are")
    return runner


def _tiers(tier: str | None) -> tuple[Tier, ...]:
    if tier is None:
        return TIERS
    try:
        return (Tier(tier),)
    except ValueError:
        raise BadChange(f"no tier {tier!r}; there are {', '.join(each.value for each in TIERS)}") from None


def _changes(model: str, given: Mapping[str, Any] | Iterable[str]) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    # `celery control` repeats its last fixed argument when nothing follows (`bin.control._consume_arguments`).
    return pairs(each for each in given if each != model)
