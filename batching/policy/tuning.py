"""A policy by its name, and another value of it while it runs.

Names and keys are those of `bunch.toml` and of `manage.py tune`: milliseconds where a policy has seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias

from batching.policy.adaptive import Adaptive
from batching.policy.ewma import EwmaWindow
from batching.policy.fixed import FixedWindow
from batching.policy.idle import WhenIdle
from batching.policy.pid import PidWindow
from batching.policy.slo import SloAware
from batching.policy.speculative import Speculative
from batching.policy.thresholds import Thresholds

AnyPolicy: TypeAlias = Adaptive | EwmaWindow | FixedWindow | PidWindow | SloAware | Speculative | Thresholds | WhenIdle

POLICIES: Mapping[str, type[AnyPolicy]] = {
    "adaptive": Adaptive,
    "idle": WhenIdle,
    "fixed": FixedWindow,
    "ewma": EwmaWindow,
    "pid": PidWindow,
    "thresholds": Thresholds,
    "slo": SloAware,
    "speculative": Speculative,
}
# Where bunch.toml gives no max_wait_ms: what the designs that a policy comes from use, and for `adaptive` a bound that
# the share of a batch's time seldom meets.
DEFAULT_MAX_WAIT_S: Mapping[str, float] = {
    "adaptive": 0.02,
    "idle": 0.0,
    "fixed": 0.05,
    "ewma": 0.1,
    "pid": 0.1,
    "thresholds": 0.1,
    "slo": 0.1,
    "speculative": 0.05,
}

_LONGEST_S = 60.0
_RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("max_batch_size", "size", "quiet_size", "busy_size"), (1, 100_000)),
    **dict.fromkeys(("quiet_depth", "busy_depth"), (0, 10_000_000)),
    **dict.fromkeys(("gather", "quiet_use", "busy_use"), (0, 1)),
    **dict.fromkeys(("kp", "ki", "kd"), (0, 100)),
    "sure": (0, 10),
    "spare": (1, 10),
}


class TuneError(ValueError):
    """Some of the changes are none for this policy; nothing was changed. `problems` has a sentence for each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


def make(name: str, max_batch_size: int, max_wait_s: float | None, options: Mapping[str, Any]) -> AnyPolicy:
    """The policy called `name`, with whatever `options` say beside the two settings that all have.

    Raises:
        TuneError: no such policy, or options that it does not have.
    """
    if name not in POLICIES:
        raise TuneError((f"policy={name}: must be one of {', '.join(POLICIES)}",))
    kind: Any = POLICIES[name]
    wait_s = DEFAULT_MAX_WAIT_S[name] if max_wait_s is None else max_wait_s
    made: AnyPolicy = kind(max_batch_size) if kind is WhenIdle else kind(max_batch_size, wait_s)
    return retuned(made, options)


def name_of(policy: object) -> str:
    """As bunch.toml calls it."""
    return next((name for name, kind in POLICIES.items() if type(policy) is kind), type(policy).__name__)


def knobs(policy: AnyPolicy) -> dict[str, float]:
    """Every key that `retuned` takes for this policy, with its value now."""
    return {
        _key(field.name): value * 1000 if field.name.endswith("_s") else value
        for field in fields(policy)
        if (value := getattr(policy, field.name)) is not None
    }


def retuned(policy: AnyPolicy, changes: Mapping[str, Any]) -> AnyPolicy:
    """`policy` with other values, `{"max_wait_ms": 20, "max_batch_size": 32}`; strings are read as numbers.

    `{"policy": "slo"}` makes it another policy, with the same `max_batch_size` and, where it has one, `max_wait_ms`.

    Raises:
        TuneError: a key that this policy has not, or a value out of its range. Nothing is changed then.
    """
    rest = {key: value for key, value in changes.items() if key != "policy"}
    if "policy" in changes and changes["policy"] != name_of(policy):
        policy = make(str(changes["policy"]), policy.max_batch_size, getattr(policy, "max_wait_s", None), {})
    names = {_key(field.name): field.name for field in fields(policy)}
    values: dict[str, Any] = {}
    problems = []
    for key, value in rest.items():
        if key not in names:
            problems.append(f"{key}: unknown to {name_of(policy)}; it has {', '.join(names)}")
            continue
        try:
            values[names[key]] = _read(names[key], value)
        except ValueError as error:
            problems.append(f"{key}={value}: {error}")
    if problems:
        raise TuneError(tuple(problems))
    return replace(policy, **values)


def _key(field: str) -> str:
    return field[:-1] + "ms" if field.endswith("_s") else field


def _read(field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("must be a number") from None
    if field.endswith("_s"):
        # No objective is an infinite one; no other time is.
        endless = field == "slo_s" and number == math.inf
        if not (0 <= number <= _LONGEST_S * 1000 or endless):
            raise ValueError(f"must be milliseconds from 0 to {_LONGEST_S * 1000:.0f}")
        return number / 1000
    low, high = _RANGES[field]
    if not low <= number <= high:
        raise ValueError(f"must be from {low:g} to {high:g}")
    if field.endswith(("size", "depth")):
        if number != int(number):
            raise ValueError("must be a whole number")
        return int(number)
    return number
