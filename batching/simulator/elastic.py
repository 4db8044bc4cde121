"""A fleet that scales while it runs, by the rules of `batching.policy.scaling`, in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batching.policy import ScalingRules, ScalingState, Signals, decide_scale
from batching.simulator.engine import Simulation
from batching.simulator.feeder import At, Feeder
from batching.simulator.report import Report
from batching.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Elastic:
    """The result; `changes` are time, wanted executors from then on, and the reason."""

    report: Report
    changes: tuple[tuple[float, int, str], ...]


def simulate_elastic(scenario: Scenario, rules: ScalingRules, *, seed: int = 1, every_s: float = 5.0) -> Elastic:
    """Run `scenario`, applying the rules at intervals; a new executor serves after `rules.cold_start_s`."""
    simulation = Simulation(scenario, seed)
    rate_of_one = scenario.max_batch_size / scenario.service.seconds(scenario.max_batch_size)
    fleet = _Fleet(simulation, rules, rate_of_one, every_s, scenario.duration_s)
    simulation.call_at(every_s, fleet.tick)
    return Elastic(simulation.run(), tuple(fleet.changes))


class _Fleet:
    def __init__(
        self, simulation: Simulation, rules: ScalingRules, rate_of_one: float, every_s: float, until_s: float
    ) -> None:
        self.changes: list[tuple[float, int, str]] = []
        self._simulation = simulation
        self._rules = rules
        self._rate_of_one = rate_of_one
        self._every_s = every_s
        self._until_s = until_s
        self._state = ScalingState()
        self._served = 0

    def tick(self) -> None:
        simulation = self._simulation
        now = simulation.now
        scale, self._state = decide_scale(self._rules, self._signals(now), self._state, now)
        working = [each for each in simulation.feeders if not each.draining]
        if scale.reason:
            self.changes.append((now, scale.wanted, scale.reason))
        for _ in range(scale.wanted - len(working)):
            simulation.add(now + self._rules.cold_start_s)
        for feeder in working[scale.wanted :]:
            simulation.drain(feeder)
        if now + self._every_s < self._until_s:
            simulation.call_at(now + self._every_s, self.tick)

    def _signals(self, now: float) -> Signals:
        simulation = self._simulation
        simulation.queues.arrive(now)
        ready = [each for each in simulation.feeders if _serves(each, now)]
        starting = sum(each.started_at > now for each in simulation.feeders if not each.draining)
        served = sum(each.served for each in simulation.feeders)
        rate = (served - self._served) / self._every_s
        self._served = served
        use = min(1.0, rate / (self._rate_of_one * max(1, len(ready))))
        depth = simulation.queues.depth
        drain_s = 0.0 if not depth else depth / rate if rate else math.inf
        return Signals(depth, use, drain_s, len(ready), starting)


def _serves(feeder: Feeder, now: float) -> bool:
    return not feeder.draining and feeder.at is not At.GONE and feeder.started_at <= now
