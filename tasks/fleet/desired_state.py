"""The desired state that operators set, kept in Redis. Workers apply it when they are told, else with a heartbeat.

    manage.py, celery control, /ops ──▶ bunch:controls:<model> ──▶ every worker, one that starts tomorrow too

A command sent only to the live workers would be forgotten at the next restart; a desired state that is stored is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from redis import Redis

from batching.policy import TuneError, make
from config.errors import not_of_kind
from config.keys import Shard
from config.model_files.versions import SEPARATOR, too_heavy
from config.settings import ModelSettings
from config.tiers import TIERS, Tier

# The settings of a policy; they change between two batches.
TUNABLE = ("policy", "max_batch_size", "max_wait_ms")
# Frontends divide owners by it; workers have no use for it.
WEIGHT = "weight"
# The settings of an executor's process; they change by starting another process.
RELOADABLE = (
    *("source", "version", "device", "options", "timeout_ms", "start_timeout_ms", "timeout_factor"),
    *("max_batch_cost", "group_by_cost", "batch_sizes", "length_buckets", "warmup_input", "spare"),
)
# A command line gives them as JSON.
_AS_JSON = frozenset({"options", "batch_sizes", "length_buckets"})

_PAUSED = "paused."
_TUNED = "tuned."
_RELOAD = "reload"
_REFUSED = "refused"
_TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(ModelSettings)}


class BadChange(ValueError):
    """A change that cannot be made; the message names the key and what would be valid."""


class Reload(msgspec.Struct, frozen=True):
    """Restart every executor. `generation` grows with each reload; `changes` override the file's values."""

    generation: int = 0
    changes: dict[str, Any] = {}


class Desired(msgspec.Struct, frozen=True):
    """The desired state of one model. `refused` is the generation of a reload that failed to load, and why. `weight`
    is that of a version, in per cent; None: the file's.
    """

    paused: frozenset[Tier] = frozenset()
    tuned: dict[str, Any] = {}
    reload: Reload = Reload()
    refused: int = 0
    refusal: str = ""
    weight: float | None = None

    @property
    def is_refused(self) -> bool:
        return self.refused == self.reload.generation > 0


class _Refusal(msgspec.Struct):
    generation: int
    why: str


def checked(changes: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """Return `changes` converted to the types of a model's settings. An empty or missing value means: as in the file.

    Raises:
        BadChange: a key is unknown, or a value has the wrong type.
    """
    allowed = tuple(allowed)
    found: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in allowed:
            raise BadChange(f"{key} cannot be changed at run time; {', '.join(allowed)} can")
        if value is None or value == "":
            found[key] = None
            continue
        try:
            given = msgspec.json.decode(value) if key in _AS_JSON and isinstance(value, str) else value
            found[key] = msgspec.convert(given, _TYPES[key], strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise BadChange(f"{key} = {value!r}: {not_of_kind(error, _TYPES[key])}") from error
    return found


def pairs(given: Iterable[str]) -> dict[str, str]:
    """Parse `key=value` words of a command line. Raises BadChange."""
    found = {}
    for each in given:
        key, sign, value = each.partition("=")
        if not sign:
            raise BadChange(f"{each!r} is not of the form key=value")
        found[key] = value
    return found


def with_desired(model: ModelSettings, desired: Desired) -> ModelSettings:
    """The settings that a model runs with now.

    A tuned value that does not fit the file any more is left out, so that it cannot keep a worker from starting.
    """
    changes = {} if desired.is_refused else desired.reload.changes
    model = msgspec.structs.replace(model, **changes)
    try:
        return tuned(model, desired.tuned)
    except BadChange:
        return model


def weight_of(model: ModelSettings, desired: Desired) -> float:
    """The weight of a version now, in per cent."""
    return model.weight if desired.weight is None else desired.weight


def without_weight(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that workers must be told: repeated by them, a weight could undo one that was set meanwhile."""
    return {key: value for key, value in changes.items() if key != WEIGHT}


def tuned(model: ModelSettings, changes: Mapping[str, Any]) -> ModelSettings:
    """Return `model` with another policy, or other values for it. A key that is no setting is an option of the policy.

    Raises:
        BadChange: the policy has no such key, or the value is not valid for it.
    """
    settings = {key: value for key, value in changes.items() if key in TUNABLE}
    options = {key: value for key, value in changes.items() if key not in TUNABLE}
    # The file's options belong to the file's policy.
    of_the_file = model.policy_options if settings.get("policy", model.policy) == model.policy else {}
    changed = msgspec.structs.replace(model, **settings, policy_options={**of_the_file, **options})
    try:
        make(changed.policy, changed.max_batch_size, changed.max_wait_s, changed.policy_options)
    except TuneError as error:
        raise BadChange(str(error)) from error
    return changed


def changes_to(model: ModelSettings, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that `tune` must make so that exactly `wanted` is tuned, starting from `before`; "" resets a key.

    A value that the file of `model` already has is not tuned, so that it follows the file.
    """
    of_the_file = {key: getattr(model, key) for key in TUNABLE}
    if wanted.get("policy", model.policy) == model.policy:
        of_the_file |= model.policy_options
    needed = {key: value for key, value in wanted.items() if value != of_the_file.get(key)}
    back = {key: "" for key in before if key not in needed}
    return back | {key: value for key, value in needed.items() if value != before.get(key)}


class DesiredState:
    """Reads and writes the desired state in Redis. Every method raises RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()

    def read(self, models: Iterable[str]) -> dict[str, Desired]:
        """The desired state of each model: one round trip, and a second one if anything is set."""
        names = tuple(models)
        if not names or not self._redis.exists(*map(self._keys.controls, names)):
            return {name: Desired() for name in names}
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(self._keys.controls(name))
        rows = cast("list[dict[bytes, bytes]]", pipeline.execute())
        return {name: _desired(row) for name, row in zip(names, rows, strict=True)}

    def pause(self, model: str, tiers: Iterable[Tier] = TIERS) -> None:
        """Stop claiming requests of these tiers until `resume`. Queued requests keep waiting until their own
        deadlines.
        """
        fields = {_PAUSED + tier.value: b"1" for tier in tiers}
        self._redis.hset(self._keys.controls(model), mapping=cast("dict[Any, Any]", fields))

    def resume(self, model: str, tiers: Iterable[Tier] = TIERS) -> None:
        self._redis.hdel(self._keys.controls(model), *(_PAUSED + tier.value for tier in tiers))

    def tune(self, model: ModelSettings, changes: Mapping[str, Any], others: Sequence[ModelSettings] = ()) -> None:
        """Change the policy of `model`, its values or its weight, until changed again.

        An empty value resets a key to the file's. `others` are the versions of the same model that have a weight.
        Raises BadChange, and then nothing is changed.
        """
        wanted = self._wanted(changes)
        self.preview(model, changes, others)
        key = self._keys.controls(model.name)
        pipeline = self._redis.pipeline(transaction=True)
        for name, value in wanted.items():
            field = name if name == WEIGHT else _TUNED + name
            if value is None:
                pipeline.hdel(key, field)
            else:
                pipeline.hset(key, field, msgspec.json.encode(value))
        pipeline.execute()

    def preview(
        self, model: ModelSettings, changes: Mapping[str, Any], others: Sequence[ModelSettings] = ()
    ) -> Desired:
        """The desired state after `tune`, without changing it. Raises BadChange if `tune` would."""
        before = self.read((model.name,))[model.name]
        wanted = self._wanted(changes)
        weight = before.weight
        if WEIGHT in wanted:
            weight = wanted.pop(WEIGHT)
            self._require_room(model, model.weight if weight is None else weight, others)
        now = {key: value for key, value in {**before.tuned, **wanted}.items() if value is not None}
        tuned(model, now)
        return msgspec.structs.replace(before, tuned=now, weight=weight)

    def _require_room(self, model: ModelSettings, weight: float, others: Sequence[ModelSettings]) -> None:
        if model.name == model.family:
            each = f"tune {others[0].name} {WEIGHT}=…" if others else f"add [models.{model.name}.versions.<version>]"
            raise BadChange(f"{WEIGHT}: {model.name} has what its other versions leave: {each}")
        desired = self.read(each.name for each in others)
        weights = {each.name: weight_of(each, desired[each.name]) for each in others}
        mistake = too_heavy({**weights, model.name: weight})
        if mistake is not None:
            raise BadChange(mistake)

    @staticmethod
    def _wanted(changes: Mapping[str, Any]) -> dict[str, Any]:
        """The changes with None for each key that is reset to the file's value."""
        settings = (*TUNABLE, WEIGHT)
        wanted = checked({key: value for key, value in changes.items() if key in settings}, settings)
        return wanted | {key: None if value == "" else value for key, value in changes.items() if key not in settings}

    def reload(self, model: str, changes: Mapping[str, Any]) -> Reload:
        """Restart the executors one by one, with `changes` over the file's values. Raises BadChange."""
        wanted = {key: value for key, value in checked(changes, RELOADABLE).items() if value is not None}
        if SEPARATOR in model and "version" in wanted:
            raise BadChange(f"version: {model} is asked for by it; add another [models.….versions.<version>]")
        before = self.read((model,))[model]
        reload = Reload(before.reload.generation + 1, wanted)
        self._redis.hset(self._keys.controls(model), _RELOAD, msgspec.json.encode(reload))
        return reload

    def refuse(self, model: str, generation: int, why: str) -> None:
        """Record that a reload failed to load: executors not yet restarted keep running, new ones use the file's
        values.
        """
        refusal = msgspec.json.encode(_Refusal(generation, why))
        self._redis.hset(self._keys.controls(model), _REFUSED, refusal)


def _desired(row: Mapping[bytes, bytes]) -> Desired:
    fields = {name.decode(): value for name, value in row.items()}
    refusal = msgspec.json.decode(fields.get(_REFUSED, b'{"generation":0,"why":""}'), type=_Refusal)
    changes = {
        name.removeprefix(_TUNED): msgspec.json.decode(value)
        for name, value in fields.items()
        if name.startswith(_TUNED)
    }
    return Desired(
        paused=frozenset(tier for tier in TIERS if _PAUSED + tier.value in fields),
        tuned=changes,
        reload=msgspec.json.decode(fields.get(_RELOAD, b"{}"), type=Reload),
        refused=refusal.generation,
        refusal=refusal.why,
        weight=msgspec.json.decode(fields[WEIGHT], type=float) if WEIGHT in fields else None,
    )
