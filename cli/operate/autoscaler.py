"""The I/O around `batching.policy.scaling`: reads the signals, decides, and publishes the wanted number of workers.

registry, queues, metrics ──▶ Gauge.signals ──▶ decide_scale ──▶ Actor.want (the local `up`, or what others apply)
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
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet, WorkerRow
from tasks.fleet.scaling import ScaleBoard, ScaleRow, summed
from tasks.observability.batch_times import NoBatches, Totals, fit, read_totals
from tasks.observability.metrics import SharedMetrics
from tasks.observability.slo import CALLERS_OWN

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
        """The number of workers of a group that are starting, besides the `ready` ones; below 0: so many of these are
        leaving.
        """

    def want(self, workers: int, group: str) -> None: ...


class Nobody:
    """Changes nothing: decisions are only shown, or applied by another program."""

    def starting(self, ready: int, group: str) -> int:
        return 0

    def want(self, workers: int, group: str) -> None:
        """Do nothing; another program applies the decision."""


class Exported:
    """The figures for KEDA or an HPA, which follows it within minutes.

    So the decision stands until the next one. If the number fell back to the workers of this moment while the new ones
    are loading, nobody who asks every half minute would ever see it. Where more workers stay than were decided on (a
    minimum of the other program, a person), the decision is given up after `follow_s`.
    """

    def __init__(self, row: ScaleRow | None, follow_s: float, clock: Callable[[], float]) -> None:
        # An autoscaler that was restarted continues where the one before it ended.
        rows = () if row is None else row.groups or (row,)
        self._wanted = {each.pool: each.wanted for each in rows}
        self._follow_s = follow_s
        self._clock = clock
        self._more_since: dict[str, float] = {}

    def starting(self, ready: int, group: str) -> int:
        wanted = self._wanted.get(group, ready)
        if ready <= wanted:
            self._more_since.pop(group, None)
        elif self._clock() - self._more_since.setdefault(group, self._clock()) >= self._follow_s:
            self.want(ready, group)
            return 0
        return wanted - ready

    def want(self, workers: int, group: str) -> None:
        self._wanted[group] = workers
        self._more_since.pop(group, None)


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

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        waiting: QueueReader,
        metrics: SharedMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._models = settings.models
        self._pools = {name: pool.models for name, pool in settings.pools.items()}
        self._fleet = fleet
        self._waiting = waiting
        self._metrics = metrics
        self._clock = clock
        self._asked: dict[str, tuple[float, float]] = {}
        self._readings: dict[str, deque[tuple[float, Totals]]] = {
            name: deque(maxlen=_READINGS) for name in settings.models
        }

    def signals(self, actor: Actor) -> dict[Group, Signals]:
        """The signals of each group. Raises RedisError."""
        workers = self._fleet.workers()
        healthy = self._fleet.healthy_of(workers)
        ready = [row for row in healthy if any(each.is_served for each in row.models)]
        waiting: dict[str, int] = dict.fromkeys(self._models, 0)
        for queue in self._waiting.read(self._models, workers).queues:
            waiting[queue.model] += queue.depth
        now = self._clock()
        for name in self._models:
            self._readings[name].append((now, read_totals(self._metrics, name)))
        rates = self._asked_per_s(now)
        return {
            group: self._signals(group, [row for row in ready if self._name(row) == group.name], waiting, rates, actor)
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

    def _asked_per_s(self, now: float) -> dict[str, float]:
        """Requests per second of each model since the reading before, without those that their callers got wrong."""
        counted = dict.fromkeys(self._models, 0.0)
        for labels, value in self._metrics.samples().get("bunch_requests_total", ()):
            if labels["model"] in counted and labels["code"] not in CALLERS_OWN:
                counted[labels["model"]] += value
        rates = {}
        for name, number in counted.items():
            then, before = self._asked.get(name, (now, number))
            rates[name] = max(0.0, number - before) / (now - then) if now > then else 0.0
            self._asked[name] = (now, number)
        return rates

    def _signals(
        self,
        group: Group,
        ready: list[WorkerRow],
        waiting: Mapping[str, int],
        rates: Mapping[str, float],
        actor: Actor,
    ) -> Signals:
        depth, use, drain_s = 0, 0.0, 0.0
        for name in group.models:
            if name not in self._models:
                continue
            served = self._served_per_s(name)
            depth += waiting[name]
            use = max(use, self._use(self._models[name], ready, served))
            if waiting[name]:
                drain_s = max(drain_s, waiting[name] / served if served else math.inf)
        rate = sum(rates.get(name, 0.0) for name in group.models)
        return Signals(depth, use, drain_s, len(ready), actor.starting(len(ready), group.name), rate)

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
    """Makes one decision per `step`. `own` has the rules of groups that `rules` are not for."""

    def __init__(
        self,
        rules: ScalingRules,
        gauge: Gauge,
        actor: Actor,
        board: ScaleBoard | None,
        own: Mapping[str, ScalingRules] | None = None,
    ) -> None:
        self._rules = rules
        self._own = own or {}
        self._gauge = gauge
        self._actor = actor
        self._board = board
        self._states: dict[str, ScalingState] = {}

    def step(self, now: float) -> ScaleRow:
        """Read, decide for each group, apply, publish. Raises RedisError, and then the state is unchanged."""
        rows = []
        for group, signals in self._gauge.signals(self._actor).items():
            state = self._states.get(group.name, ScalingState())
            rules = self._own.get(group.name, self._rules)
            scale, self._states[group.name] = decide_scale(rules, signals, state, now)
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
