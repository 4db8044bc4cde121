"""The I/O around `batching.policy.scaling`: reads the signals, decides, and publishes the wanted number of workers.

registry, queues, metrics ──▶ Gauge.signals ──▶ decide_scale ──▶ Actor.want (the local `up`)
                              for each group        └──▶ ScaleBoard (KEDA, HPA)

A group is a pool or, without pools, the workers that serve the same models: more of the others would not help.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from batching.policy import Scale, ScalingRules, ScalingState, Signals, decide_scale
from cli.supervisor import state as up
from config.settings import ModelSettings, Settings
from tasks.fleet.registry_reader import Fleet, WorkerRow
from tasks.fleet.scaling import ScaleBoard, ScaleRow, summed
from tasks.observability.batch_times import NoBatches, Totals, fit, read_totals
from tasks.observability.metrics import SharedMetrics

# Number of readings that batch times are fitted through.
_READINGS = 60


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that serve the same models. `name` is that of their pool or, without pools, their models; empty where
    all serve all.
    """

    name: str
    models: tuple[str, ...]


class Actor(Protocol):
    """Something that can change the number of workers."""

    def starting(self, ready: int, group: str) -> int:
        """The number of workers of a group that are starting, besides the `ready` ones."""

    def want(self, workers: int, group: str) -> None: ...


class Nobody:
    """Changes nothing: decisions are only shown, or applied by another program."""

    def starting(self, ready: int, group: str) -> int:
        return 0

    def want(self, workers: int, group: str) -> None:
        """Do nothing; another program applies the decision."""


class LocalUp:
    """The `up` that uses a state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def starting(self, ready: int, group: str = "") -> int:
        """Worker processes that were started and do not serve yet; those that are stopping do not count."""
        running = up.read(self._state_dir)
        mine = [each for each in (running.processes if running else ()) if (each.role, each.pool) == ("worker", group)]
        workers = sum(each.state not in {"stopping", "stopped"} for each in mine)
        return max(0, max(workers, up.wanted(self._state_dir).get(group, 0)) - ready)

    def want(self, workers: int, group: str = "") -> None:
        up.want(self._state_dir, workers, group)


class Gauge:
    """Reads the values of `Signals`. `clock` is monotonic, in seconds."""

    def __init__(self, settings: Settings, fleet: Fleet, metrics: SharedMetrics, clock: Callable[[], float]) -> None:
        self._models = settings.models
        self._pools = {name: pool.models for name, pool in settings.pools.items()}
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._readings: dict[str, deque[tuple[float, Totals]]] = {
            name: deque(maxlen=_READINGS) for name in settings.models
        }

    def signals(self, actor: Actor) -> dict[Group, Signals]:
        """The signals of each group. Raises RedisError."""
        healthy = self._fleet.healthy()
        ready = [row for row in healthy if any(each.state == "ready" for each in row.models)]
        waiting: dict[str, int] = dict.fromkeys(self._models, 0)
        for queue in self._fleet.queues(self._models):
            waiting[queue.model] += queue.depth
        now = self._clock()
        for name in self._models:
            self._readings[name].append((now, read_totals(self._metrics, name)))
        return {
            group: self._signals(group, [row for row in ready if self._name(row) == group.name], waiting, actor)
            for group in self._groups(healthy)
        }

    def _groups(self, workers: Sequence[WorkerRow]) -> list[Group]:
        if self._pools:
            return [Group(name, models) for name, models in self._pools.items()]
        found = {self._name(row): Group(self._name(row), _served(row)) for row in workers if row.models}
        # Without a worker, and with those that serve everything, there is the group of all.
        everything = Group("", tuple(self._models))
        return [found[name] if name else everything for name in sorted(found)] or [everything]

    def _name(self, row: WorkerRow) -> str:
        if self._pools:
            return row.pool
        return "" if set(_served(row)) >= set(self._models) else ",".join(_served(row))

    def _signals(self, group: Group, ready: list[WorkerRow], waiting: Mapping[str, int], actor: Actor) -> Signals:
        depth, use, drain_s = 0, 0.0, 0.0
        for name in group.models:
            if name not in self._models:
                continue
            served = self._served_per_s(name)
            depth += waiting[name]
            use = max(use, self._use(self._models[name], ready, served))
            if waiting[name]:
                drain_s = max(drain_s, waiting[name] / served if served else math.inf)
        return Signals(depth, use, drain_s, len(ready), actor.starting(len(ready), group.name))

    def _served_per_s(self, model: str) -> float:
        readings = self._readings[model]
        if len(readings) < 2:
            return 0.0
        (then, before), (now, after) = readings[-2], readings[-1]
        return max(0.0, after.requests - before.requests) / (now - then) if now > then else 0.0

    def _use(self, model: ModelSettings, ready: list[WorkerRow], served: float) -> float:
        """Served requests as a share of the executors' capacity with full batches; until that is known, the share of
        busy time.
        """
        mine = [each for row in ready for each in row.models if each.model == model.name and each.state == "ready"]
        if not mine:
            return 0.0
        busy = sum(each.busy for each in mine) / len(mine)
        try:
            times = fit([totals for _, totals in self._readings[model.name]])
        except NoBatches:
            return busy
        full_s = times.seconds(model.max_batch_size)
        return min(busy, served * full_s / model.max_batch_size / len(mine)) if full_s > 0 else busy


class Autoscaler:
    """Makes one decision per `step`."""

    def __init__(self, rules: ScalingRules, gauge: Gauge, actor: Actor, board: ScaleBoard | None) -> None:
        self._rules = rules
        self._gauge = gauge
        self._actor = actor
        self._board = board
        self._states: dict[str, ScalingState] = {}

    def step(self, now: float) -> ScaleRow:
        """Read, decide for each group, apply, publish. Raises RedisError, and then the state is unchanged."""
        rows = []
        for group, signals in self._gauge.signals(self._actor).items():
            state = self._states.get(group.name, ScalingState())
            scale, self._states[group.name] = decide_scale(self._rules, signals, state, now)
            if scale.reason:
                self._actor.want(scale.wanted, group.name)
            rows.append(_row(group, signals, scale))
        row = summed(rows)
        if self._board is not None:
            self._board.write(row)
        return row


def _served(row: WorkerRow) -> tuple[str, ...]:
    return tuple(sorted({each.model for each in row.models}))


def _row(group: Group, signals: Signals, scale: Scale) -> ScaleRow:
    return ScaleRow(
        scale.wanted,
        signals.ready,
        signals.starting,
        signals.depth,
        round(signals.use, 4),
        None if signals.drain_s == math.inf else round(signals.drain_s, 3),
        scale.reason,
        group.name,
        group.models,
    )
