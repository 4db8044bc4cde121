"""The I/O around `batching.policy.scaling`: reads the signals, decides, and publishes the wanted number of workers.

registry, queues, metrics ──▶ Gauge.signals ──▶ decide_scale ──▶ Actor.want (the local `up`)
                                                    └──▶ ScaleBoard (KEDA, HPA)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from batching.policy import Scale, ScalingRules, ScalingState, Signals, decide_scale
from cli.supervisor import state as up
from config.settings import ModelSettings, Settings
from tasks.fleet.registry_reader import Fleet, WorkerRow
from tasks.fleet.scaling import ScaleBoard, ScaleRow
from tasks.observability.batch_times import NoBatches, Totals, fit, read_totals
from tasks.observability.metrics import SharedMetrics

# Number of readings that batch times are fitted through.
_READINGS = 60


class Actor(Protocol):
    """Something that can change the number of workers."""

    def starting(self, ready: int) -> int:
        """The number of workers that are starting, besides the `ready` ones."""

    def want(self, workers: int) -> None: ...


class Nobody:
    """Changes nothing: decisions are only shown, or applied by another program."""

    def starting(self, ready: int) -> int:
        return 0

    def want(self, workers: int) -> None:
        """Do nothing; another program applies the decision."""


class LocalUp:
    """The `up` that uses a state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def starting(self, ready: int) -> int:
        """Worker processes that were started and do not serve yet; those that are stopping do not count."""
        running = up.read(self._state_dir)
        processes = running.processes if running else ()
        workers = sum(each.role == "worker" and each.state not in {"stopping", "stopped"} for each in processes)
        return max(0, max(workers, up.wanted(self._state_dir) or 0) - ready)

    def want(self, workers: int) -> None:
        up.want(self._state_dir, workers)


class Gauge:
    """Reads the values of `Signals`. `clock` is monotonic, in seconds."""

    def __init__(self, settings: Settings, fleet: Fleet, metrics: SharedMetrics, clock: Callable[[], float]) -> None:
        self._models = settings.models
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._readings: dict[str, deque[tuple[float, Totals]]] = {
            name: deque(maxlen=_READINGS) for name in settings.models
        }

    def signals(self, actor: Actor) -> Signals:
        """Raises RedisError."""
        healthy = self._fleet.healthy()
        ready = [row for row in healthy if any(each.state == "ready" for each in row.models)]
        depth, use, drain_s = 0, 0.0, 0.0
        waiting: dict[str, int] = dict.fromkeys(self._models, 0)
        for queue in self._fleet.queues(self._models):
            waiting[queue.model] += queue.depth
        now = self._clock()
        for name, model in self._models.items():
            self._readings[name].append((now, read_totals(self._metrics, name)))
            served = self._served_per_s(name)
            depth += waiting[name]
            use = max(use, self._use(model, ready, served))
            if waiting[name]:
                drain_s = max(drain_s, waiting[name] / served if served else math.inf)
        return Signals(depth, use, drain_s, len(ready), actor.starting(len(ready)))

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
        self._state = ScalingState()

    def step(self, now: float) -> ScaleRow:
        """Read, decide, apply, publish. Raises RedisError, and then the state is unchanged."""
        signals = self._gauge.signals(self._actor)
        scale, self._state = decide_scale(self._rules, signals, self._state, now)
        if scale.reason:
            self._actor.want(scale.wanted)
        row = _row(signals, scale)
        if self._board is not None:
            self._board.write(row)
        return row


def _row(signals: Signals, scale: Scale) -> ScaleRow:
    return ScaleRow(
        scale.wanted,
        signals.ready,
        signals.starting,
        signals.depth,
        round(signals.use, 4),
        None if signals.drain_s == math.inf else round(signals.drain_s, 3),
        scale.reason,
    )
