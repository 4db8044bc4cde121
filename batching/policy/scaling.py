"""The number of workers that a load needs: up fast, down slowly (the rules of the published designs, and drain time).

    waiting > 500 for 30 s        + 3        waiting > 100 for 60 s         + 1
    use > 85 % for 5 min          + 1        drain > 10 s for 15 s          as many as bring it back to 10 s
    use < 40 % for 15 min         − 10 %, at least one, once in 5 min

    nothing asked for 15 min      to 0, where the minimum is 0; the first request then calls for one

A queue that drains within a second is not a backlog, whatever its depth: 500 requests are little for 32 GPUs.

A condition must last for a time, so its start is part of the state, and a change resets all conditions. A new worker
takes time to load its models: until then no more are started for the same backlog, unless the fleet is below its
minimum. `decide_scale` is a function: state and signals in, decision and state out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Signals:
    """The fleet at one time.

    `depth` is the number of waiting requests, `drain_s` the time to drain them (0: none, or not known). `use` is the
    served rate as a share of the rate with full batches; busy time says less, since an executor that takes small
    batches as soon as it is free is always busy. `ready` workers serve, `starting` ones do not yet; below 0, so many
    of the ready ones were told to leave. `rate` is how many requests a second ask for a worker, also those that are
    refused because none runs: the only signal of a model that nobody serves, since its requests are not queued.
    """

    depth: int
    use: float
    drain_s: float
    ready: int
    starting: int = 0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """More than `depth` waiting for `for_s` seconds: add `add` workers."""

    depth: int
    for_s: float
    add: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """The thresholds, each checked against the others.

    Args:
        cold_start_s: time from the start of a worker until it serves.
        down_share: share of the fleet that is removed at once; a tenth to a fifth in the designs.
        after_down_s: time from a change to the next scale-down.
        soon_s: a queue that drains within this time is not a backlog.
        most_added: maximum number of workers added at once.
        forget_s: a gap in the signals after which all conditions start over.
    """

    least: int = 1
    most: int = 8
    steps: tuple[Step, ...] = (Step(500, 30.0, 3), Step(100, 60.0, 1))
    busy: float = 0.85
    busy_for_s: float = 300.0
    drain_s: float = 10.0
    drain_for_s: float = 15.0
    soon_s: float = 1.0
    idle: float = 0.40
    idle_for_s: float = 900.0
    down_share: float = 0.1
    after_down_s: float = 300.0
    cold_start_s: float = 60.0
    most_added: int = 3
    forget_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(
                f"the minimum ({self.least}) must be at most the maximum ({self.most}), which must be at least 1"
            )
        if not 0 <= self.idle < self.busy <= 1:
            raise ValueError(
                f"idle ({self.idle}) must be below busy ({self.busy}), both fractions, or the fleet would oscillate"
            )
        if not 0 < self.down_share <= 0.2:
            raise ValueError(
                f"down_share is {self.down_share}; at most a fifth (0.2) of the fleet may be removed at once"
            )


@dataclass(frozen=True, slots=True)
class ScalingState:
    """The times since when each condition has held (None: it does not), and of the last change of the fleet."""

    seen_at: float = -math.inf
    deep_since: tuple[float | None, ...] = ()
    slow_since: float | None = None
    busy_since: float | None = None
    idle_since: float | None = None
    quiet_since: float | None = None
    changed_at: float = -math.inf
    grown_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class Scale:
    """The decision: `wanted` workers; `reason` is empty when there is no change."""

    wanted: int
    reason: str = ""


def decide_scale(rules: ScalingRules, signals: Signals, state: ScalingState, now: float) -> tuple[Scale, ScalingState]:
    """One decision, and the state for the next one. Times in seconds on any one clock."""
    state = _observe(rules, signals, state, now)
    fleet = signals.ready + signals.starting
    wanted, reason = _wanted(rules, signals, state, fleet, now)
    wanted = min(max(wanted, rules.least), rules.most)
    if wanted == fleet:
        return Scale(fleet), state
    grown_at = now if wanted > fleet else state.grown_at
    # Conditions start over: the same backlog must not be answered twice.
    return Scale(wanted, reason), ScalingState(
        seen_at=now, deep_since=(None,) * len(rules.steps), changed_at=now, grown_at=grown_at
    )


def _observe(rules: ScalingRules, signals: Signals, state: ScalingState, now: float) -> ScalingState:
    if now - state.seen_at > rules.forget_s or len(state.deep_since) != len(rules.steps):
        state = ScalingState(
            deep_since=(None,) * len(rules.steps), changed_at=state.changed_at, grown_at=state.grown_at
        )
    return replace(
        state,
        seen_at=now,
        deep_since=tuple(
            _since(since, now, holds=_is_deep(rules, signals, step))
            for since, step in zip(state.deep_since, rules.steps, strict=True)
        ),
        slow_since=_since(state.slow_since, now, holds=signals.drain_s > rules.drain_s),
        busy_since=_since(state.busy_since, now, holds=signals.use > rules.busy),
        idle_since=_since(state.idle_since, now, holds=signals.use < rules.idle and not _backlog(rules, signals)),
        quiet_since=_since(state.quiet_since, now, holds=not _asked(signals)),
    )


def _wanted(rules: ScalingRules, signals: Signals, state: ScalingState, fleet: int, now: float) -> tuple[int, str]:
    if not rules.least <= fleet <= rules.most:
        return min(
            max(fleet, rules.least), rules.most
        ), f"{fleet} workers are outside the allowed {rules.least} to {rules.most}"
    if not fleet:
        # Here only where the minimum is 0. Whoever asks is refused until a worker serves, so nothing is waited for.
        return (1, "requests come, and no worker serves them") if _asked(signals) else (0, "")
    if signals.starting > 0 and now - state.grown_at < 2 * rules.cold_start_s:
        # Workers that were asked for are not ready yet. Wait at most twice their time, since one that never starts must
        # not block scaling.
        return fleet, ""
    added, reason = _more(rules, signals, state, now)
    if added:
        return fleet + added, reason
    return _fewer(rules, signals, state, fleet, now)


def _fewer(rules: ScalingRules, signals: Signals, state: ScalingState, fleet: int, now: float) -> tuple[int, str]:
    if now - state.changed_at < rules.after_down_s:
        return fleet, ""
    if not rules.least and _lasted(state.quiet_since, rules.idle_for_s, now):
        return 0, f"nothing asked for {rules.idle_for_s:.0f} s"
    if _lasted(state.idle_since, rules.idle_for_s, now):
        fewer = max(1, math.floor(rules.down_share * fleet))
        # The remaining workers must not be busy at once, or the fleet would grow again.
        if fleet > fewer and signals.use * fleet / (fleet - fewer) < rules.busy:
            return fleet - fewer, f"under {rules.idle:.0%} busy for {rules.idle_for_s:.0f} s"
    return fleet, ""


def _more(rules: ScalingRules, signals: Signals, state: ScalingState, now: float) -> tuple[int, str]:
    """The largest increase that any rule asks for."""
    asked: list[tuple[int, str]] = []
    if _lasted(state.slow_since, rules.drain_for_s, now):
        short = math.inf if signals.drain_s == math.inf else signals.ready * (signals.drain_s / rules.drain_s - 1)
        add = math.ceil(min(max(1.0, short), rules.most_added) - 1e-9)
        asked.append((add, f"draining the queue would take {signals.drain_s:.0f} s"))
    for since, step in zip(state.deep_since, rules.steps, strict=True):
        if _lasted(since, step.for_s, now):
            asked.append((step.add, f"more than {step.depth} waiting for {step.for_s:.0f} s"))
    if _lasted(state.busy_since, rules.busy_for_s, now):
        asked.append((1, f"over {rules.busy:.0%} busy for {rules.busy_for_s:.0f} s"))
    return max(asked, key=lambda each: each[0], default=(0, ""))


def _asked(signals: Signals) -> bool:
    return signals.depth > 0 or signals.rate > 0


def _backlog(rules: ScalingRules, signals: Signals) -> bool:
    return signals.drain_s > rules.drain_s or any(_is_deep(rules, signals, step) for step in rules.steps)


def _is_deep(rules: ScalingRules, signals: Signals, step: Step) -> bool:
    return signals.depth > step.depth and not 0 < signals.drain_s < rules.soon_s


def _since(since: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasted(since: float | None, for_s: float, now: float) -> bool:
    return since is not None and now - since >= for_s
