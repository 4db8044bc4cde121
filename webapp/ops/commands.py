"""Pause, resume, drain and tune from the page: the actions of `manage.py`, with a sentence that announces each.

A change of a model is stored, so that it holds for workers that start later,
and then sent to the live ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from kombu.exceptions import OperationalError
from msgspec.structs import replace

from config.model_files.versions import others_of
from config.settings import ModelSettings
from config.tiers import TIERS, Tier
from tasks.fleet.broadcast import find_nodes, tell
from tasks.fleet.desired_state import (
    TUNABLE,
    WEIGHT,
    BadChange,
    Desired,
    DesiredState,
    weight_of,
    with_desired,
    without_weight,
)
from tasks.fleet.registry_reader import WorkerRow
from webapp.errors import ApiError
from webapp.services import Services

logger = logging.getLogger(__name__)

_NAMED = 3
_DRAINED = frozenset({"draining", "drained"})


class OfModel(msgspec.Struct, forbid_unknown_fields=True):
    """A model, or one tier of it."""

    model: str
    tier: Tier | None = None

    @property
    def tiers(self) -> tuple[Tier, ...]:
        return TIERS if self.tier is None else (self.tier,)

    def __str__(self) -> str:
        return self.model if self.tier is None else f"{self.model}.{self.tier.value}"


class OfWorker(msgspec.Struct, forbid_unknown_fields=True):
    """`worker`: a node name, the part of it before the @, or a worker's id."""

    worker: str


class Changes(msgspec.Struct, forbid_unknown_fields=True):
    """The key=value pairs of `manage.py tune`; an empty value resets the key to the file's."""

    model: str
    changes: dict[str, str | int | float | None]


Arguments = TypeVar("Arguments", bound=msgspec.Struct)


def will_pause(services: Services, arguments: Mapping[str, Any]) -> str:
    asked = _of_model(services, arguments)
    if _paused(services, asked) >= set(asked.tiers):
        return f"{asked} is already paused: nothing will change. {_Standing.of(services, asked).waiting}."
    standing = _Standing.of(services, asked)
    return (
        f"{standing.workers} will claim no requests of {asked} until it is resumed, also after a restart. Batches in "
        f"progress are finished. {standing.waiting}; these and all new ones will wait until their own deadlines."
    )


def pause(services: Services, arguments: Mapping[str, Any]) -> str:
    asked = _of_model(services, arguments)
    DesiredState(services.redis).pause(asked.model, asked.tiers)
    return f"{asked} is paused; {_told(services, 'pause', _words(asked), _nodes(services, asked))}"


def will_resume(services: Services, arguments: Mapping[str, Any]) -> str:
    if "worker" in arguments:
        return _will_claim_again(services, _arguments(arguments, OfWorker).worker)
    asked = _of_model(services, arguments)
    standing = _Standing.of(services, asked)
    if not _paused(services, asked) & set(asked.tiers):
        return f"{asked} is not paused: nothing will change. {standing.waiting}."
    return f"{standing.workers} will claim {asked} again. {standing.waiting}."


def resume(services: Services, arguments: Mapping[str, Any]) -> str:
    if "worker" in arguments:
        node = _node(services, _arguments(arguments, OfWorker).worker)
        _must_hear(services, "resume", node)
        return f"{node} claims again"
    asked = _of_model(services, arguments)
    DesiredState(services.redis).resume(asked.model, asked.tiers)
    return f"{asked} is resumed; {_told(services, 'resume', _words(asked), _nodes(services, asked))}"


def will_drain(services: Services, arguments: Mapping[str, Any]) -> str:
    node = _node(services, _arguments(arguments, OfWorker).worker)
    row, others = _row(services, node)
    if row.state in _DRAINED:
        return f"{node} is already {row.state}: nothing will change."
    served = " ".join(_left_behind(services, model, others) for model in dict.fromkeys(e.model for e in row.models))
    return (
        f"{node} will claim no more requests and finish the batches that it holds. It keeps running until it "
        f"is resumed or stopped; a restart ends the drain. {served}"
    ).rstrip()


def drain(services: Services, arguments: Mapping[str, Any]) -> str:
    node = _node(services, _arguments(arguments, OfWorker).worker)
    return f"{node}: {_must_hear(services, 'drain', node)}"


def will_tune(services: Services, arguments: Mapping[str, Any]) -> str:
    asked, before, after = _tuning(services, arguments)
    changed = [
        f"{key} {_shown(getattr(before, key))} → {_shown(getattr(after, key))}"
        for key in (*TUNABLE, "policy_options", WEIGHT)
        if getattr(before, key) != getattr(after, key)
    ]
    if not changed:
        return f"{asked.model} already runs with these values: nothing will change."
    if before == replace(after, weight=before.weight):
        return (
            f"{asked.model}: {'; '.join(changed)}. All frontends will follow within a second; owners move "
            "between this version and the model's own only."
        )
    standing = _Standing.of(services, OfModel(asked.model))
    return (
        f"{asked.model}: {'; '.join(changed)}. {standing.workers} will use these values from the next batch on, "
        f"also after restarts. {standing.waiting}."
    )


def tune(services: Services, arguments: Mapping[str, Any]) -> str:
    asked, *_ = _tuning(services, arguments)
    models = services.settings.models
    DesiredState(services.redis).tune(models[asked.model], asked.changes, others_of(models, asked.model))
    words = {"model": asked.model, "changes": without_weight(asked.changes)}
    return f"{asked.model} is tuned; {_told(services, 'tune', words, _nodes(services, OfModel(asked.model)))}"


@dataclass(frozen=True, slots=True)
class _Standing:
    """The workers and the waiting requests that a change of a model concerns, as parts of sentences."""

    workers: str
    waiting: str

    @classmethod
    def of(cls, services: Services, asked: OfModel) -> _Standing:
        names = _nodes(services, asked)
        rows = [row for row in services.waiting.queues((asked.model,)) if Tier(row.tier) in asked.tiers]
        parts = [f"{row.depth:,} {row.tier}" for row in rows if row.depth]
        depth = sum(row.depth for row in rows)
        waiting = (
            f"{_count(depth, 'request')} {'waits' if depth == 1 else 'wait'} now" if depth else "Nothing waits now"
        )
        named = f" ({', '.join(parts)})" if len(parts) > 1 or (parts and asked.tier is None) else ""
        if not names:
            return cls("No worker serves it now; workers that start", waiting + named)
        return cls(f"{_count(len(names), 'worker')} ({_listed(names)})", waiting + named)


def _left_behind(services: Services, model: str, others: Sequence[WorkerRow]) -> str:
    """The state of a model after a drain. `others` are the workers that go on claiming."""
    left = sum(any(each.model == model for each in row.models) for row in others)
    waiting = _Standing.of(services, OfModel(model)).waiting
    if left:
        return f"{_count(left, 'other worker')} {'serves' if left == 1 else 'serve'} {model}. {waiting}."
    return f"No other worker serves {model}. {waiting}; these and all new ones will wait until their own deadlines."


def _will_claim_again(services: Services, name: str) -> str:
    node = _node(services, name)
    row, _ = _row(services, node)
    if row.state not in _DRAINED:
        return f"{node} is not drained: nothing will change."
    models = dict.fromkeys(each.model for each in row.models)
    return f"{node} will claim again: {', '.join(models)}."


def _tuning(services: Services, arguments: Mapping[str, Any]) -> tuple[Changes, ModelSettings, ModelSettings]:
    """The change, and the model's settings before and after it."""
    asked = _arguments(arguments, Changes)
    _known(services, asked.model)
    configured, state = services.settings.models[asked.model], DesiredState(services.redis)
    try:
        after = state.preview(configured, asked.changes, others_of(services.settings.models, asked.model))
    except BadChange as error:
        raise ApiError("INVALID_INPUT", str(error)) from error
    before = state.read((asked.model,))[asked.model]
    return asked, _running(configured, before), _running(configured, after)


def _running(configured: ModelSettings, desired: Desired) -> ModelSettings:
    return replace(with_desired(configured, desired), weight=weight_of(configured, desired))


def _of_model(services: Services, arguments: Mapping[str, Any]) -> OfModel:
    asked = _arguments(arguments, OfModel)
    _known(services, asked.model)
    return asked


def _known(services: Services, model: str) -> None:
    if model not in services.settings.models:
        known = ", ".join(services.settings.models)
        raise ApiError("UNKNOWN_MODEL", f"no model {model[:64]!r} is configured; the models are {known}")


def _arguments(given: Mapping[str, Any], kind: type[Arguments]) -> Arguments:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", f"arguments: {error}") from error


def _paused(services: Services, asked: OfModel) -> frozenset[Tier]:
    return DesiredState(services.redis).read((asked.model,))[asked.model].paused


def _nodes(services: Services, asked: OfModel) -> list[str]:
    """The live workers that serve the model."""
    fleet = services.fleet
    alive = fleet.alive_of(fleet.workers())
    return sorted(row.node for row in alive if row.node and any(each.model == asked.model for each in row.models))


def _node(services: Services, name: str) -> str:
    found = find_nodes(services.settings, services.redis, name)
    if len(found) != 1:
        wrong = f"several workers have this name: {_listed(found)}" if found else "no live worker has this name"
        raise ApiError("INVALID_INPUT", f"worker {name[:64]!r}: {wrong}")
    return found[0]


def _row(services: Services, node: str) -> tuple[WorkerRow, list[WorkerRow]]:
    """That worker, and the others that claim."""
    rows = services.fleet.workers()
    own = [row for row in rows if row.node == node]
    if not own:
        raise ApiError("INVALID_INPUT", f"worker: {node} is gone")
    return own[0], [row for row in services.fleet.healthy_of(rows) if row.node != node]


def _words(asked: OfModel) -> dict[str, Any]:
    return {"model": asked.model, "tier": asked.tier.value if asked.tier else None}


def _told(services: Services, command: str, words: dict[str, Any], nodes: Sequence[str]) -> str:
    """The workers' replies to a change that is already stored."""
    if not nodes:
        return "no worker serves it now; workers that start will apply it"
    replies = _replies(services, command, words, nodes)
    said = [f"{_count(sum('ok' in each for each in replies.values()), 'worker')} of {len(nodes)} applied it at once"]
    said += [f"{node} refuses: {reply['error']}" for node, reply in replies.items() if "error" in reply]
    silent = sorted(set(nodes) - set(replies))
    if silent:
        said.append(f"{_listed(silent)} did not answer and will apply it with the next heartbeat")
    return "; ".join(said)


def _must_hear(services: Services, command: str, node: str) -> str:
    """The reply of the only worker concerned; nothing is stored that it could apply later."""
    reply = _replies(services, command, {}, [node]).get(node)
    if reply is None:
        raise ApiError("BACKEND_UNAVAILABLE", f"{node} did not answer: check its state before you rely on it")
    return str(reply.get("ok") or reply)


def _replies(services: Services, command: str, words: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    try:
        return tell(services.settings, services.redis, command, words, nodes)
    except OperationalError as error:
        logger.warning("action %s: the broker is not reachable: %s", command, error)
        return {}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _shown(value: object) -> str:
    if value is None:
        return "the policy's default"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
