"""Makes a policy from its name, and changes its values while it runs.

Names and keys are those of `bunch.toml` and of `manage.py tune`: milliseconds where a policy has seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from functools import cache
from importlib import import_module
from typing import Any, cast, get_type_hints

from batching.policy.base import NamedPolicy, Within
from config.policies import POLICIES

_LONGEST_S = 60.0


class TuneError(ValueError):
    """Some of the changes are not valid for this policy; nothing was changed. `problems` has a sentence for each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


def make(name: str, max_batch_size: int, max_wait_s: float | None, options: Mapping[str, Any]) -> NamedPolicy:
    """The policy called `name`, with `options` besides the two settings that all policies have.

    Raises:
        TuneError: the policy does not exist, or does not have these options.
    """
    if name not in POLICIES:
        raise TuneError((f"policy={name}: must be one of {', '.join(POLICIES)}",))
    kind = _class_of(POLICIES[name])
    waits = max_wait_s is not None and "max_wait_s" in kind.__dataclass_fields__
    return retuned(kind(max_batch_size, max_wait_s) if waits else kind(max_batch_size), options)


def default_max_wait_s(name: str) -> float:
    """The default wait of a policy, where bunch.toml gives no `max_wait_ms`; 0 for a policy that never waits."""
    field = _class_of(POLICIES[name]).__dataclass_fields__.get("max_wait_s")
    return cast("float", field.default) if field else 0.0


def name_of(policy: object) -> str:
    """The policy's name in bunch.toml."""
    return getattr(policy, "name", type(policy).__name__)


@cache
def _class_of(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def _ranges(kind: type) -> dict[str, Within]:
    return {
        name: each
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, Within)
    }


def knobs(policy: NamedPolicy) -> dict[str, float]:
    """Every key that `retuned` accepts for this policy, with its current value."""
    return {
        _key(field.name): value * 1000 if field.name.endswith("_s") else value
        for field in fields(policy)
        if (value := getattr(policy, field.name)) is not None
    }


def retuned(policy: NamedPolicy, changes: Mapping[str, Any]) -> NamedPolicy:
    """The policy with changed values, such as `{"max_wait_ms": 20, "max_batch_size": 32}`; strings are read as numbers.

    `{"policy": "slo"}` makes it another policy, with the same `max_batch_size` and, where it has one, `max_wait_ms`.

    Raises:
        TuneError: a key that this policy does not have, or a value out of its range. Then nothing is changed.
    """
    rest = {key: value for key, value in changes.items() if key != "policy"}
    if "policy" in changes and changes["policy"] != name_of(policy):
        policy = make(str(changes["policy"]), policy.max_batch_size, getattr(policy, "max_wait_s", None), {})
    known = {_key(field.name): field for field in fields(policy)}
    values: dict[str, Any] = {}
    problems = []
    for key, value in rest.items():
        if key not in known:
            problems.append(f"{key}: {name_of(policy)} has no such option; its options are {', '.join(known)}")
            continue
        try:
            values[known[key].name] = _read(known[key], _ranges(type(policy)), value)
        except ValueError as error:
            problems.append(f"{key}={value}: {error}")
    if problems:
        raise TuneError(tuple(problems))
    return replace(policy, **values)


def _key(field: str) -> str:
    return field[:-1] + "ms" if field.endswith("_s") else field


def _read(field: Field[Any], ranges: Mapping[str, Within], value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("must be a number") from None
    if field.name.endswith("_s"):
        # An infinite objective means none; no other time may be infinite.
        endless = field.default == math.inf and number == math.inf
        if not (0 <= number <= _LONGEST_S * 1000 or endless):
            raise ValueError(f"must be milliseconds from 0 to {_LONGEST_S * 1000:.0f}")
        return number / 1000
    within = ranges[field.name]
    if not within.low <= number <= within.high:
        raise ValueError(f"must be from {within.low:g} to {within.high:g}")
    if within.whole:
        if number != int(number):
            raise ValueError("must be a whole number")
        return int(number)
    return number
