"""Several models on one device, loaded on demand, by the worker's own policy (`batching.policy.residency`).

    arrivals of a model ──▶ its Simulation, held while it is not resident ──▶ its Report
             └──waits──▶ plan ──load, drain, unload──▶ hold, release ◀──load_s, unload_s

Each model has a simulation of its own; they run in step, and the plan is asked when something has changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batching.policy.residency import Demand, Stage, Tenant, learnt_load_s, plan
from batching.simulator.engine import Simulation
from batching.simulator.feeder import At
from batching.simulator.report import Report
from batching.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class OnDemand:
    """One model.

    Args:
        needs: its room, as in `batching.policy.residency.Tenant`.
        loads_s: times that its loads take; one is drawn for each.
        unload_s: the time in which its processes end.
    """

    scenario: Scenario
    needs: Mapping[str, float]
    loads_s: Sequence[float]
    unload_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """The result: a report and the moments of the loads of each model, and the most room that was taken at once."""

    reports: Mapping[str, Report]
    loads: Mapping[str, Sequence[float]]
    most: Mapping[str, float]

    @property
    def failed(self) -> int:
        """Requests that were not answered."""
        return sum(each.requests - each.answered for each in self.reports.values())


@dataclass(slots=True)
class _Model:
    simulation: Simulation
    given: OnDemand
    draws: random.Random
    stage: Stage = Stage.UNLOADED
    since: float = -math.inf
    # The end of its load, or of its processes.
    due_at: float = math.inf
    load_s: float = 0.0
    used_at: float = -math.inf
    demand: Demand = field(default_factory=Demand)
    batches: int = 0
    served: int = 0
    loads: list[float] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return any(each.state.in_hand or (each.held and each.at is not At.DOWN) for each in self.simulation.feeders)

    @property
    def next_at(self) -> float:
        waits = self.stage is Stage.UNLOADED and not self.simulation.queues.depth
        arrival = self.simulation.queues.next_arrival if waits else math.inf
        return min(self.simulation.next_at, self.due_at, arrival)

    def notice(self, now: float) -> None:
        """Count what was answered since the last time."""
        feeders = self.simulation.feeders
        batches, served = sum(each.batches for each in feeders), sum(each.served for each in feeders)
        if batches > self.batches:
            self.demand = self.demand.seen(served - self.served, now)
            self.batches, self.served, self.used_at = batches, served, now

    def tenant(self, name: str, now: float) -> Tenant:
        queues = self.simulation.queues
        queues.arrive(now)
        return Tenant(
            name,
            self.given.needs,
            self.stage,
            self.since,
            queues.view.oldest_at if queues.depth else math.inf,
            self.busy,
            self.used_at,
            self.demand.lately(now),
            self.load_s,
            due_at=queues.due,
        )

    def enter(self, stage: Stage, now: float) -> None:
        self.stage, self.since, self.due_at = stage, now, math.inf
        feeders = self.simulation.feeders
        if stage is Stage.LOADING:
            self.loads.append(now)
            self.due_at = now + self.draws.choice(self.given.loads_s)
        elif stage is Stage.RESIDENT:
            self.load_s = learnt_load_s(self.load_s, now - self.loads[-1])
            for feeder in feeders:
                self.simulation.release(feeder, now)
        elif stage is Stage.DRAINING:
            for feeder in feeders:
                self.simulation.hold(feeder)
        elif stage is Stage.LEAVING:
            self.due_at = now + self.given.unload_s


def simulate_residency(models: Mapping[str, OnDemand], room: Mapping[str, float], seed: int = 1) -> Shared:
    """Run the models until their simulations end. `room` is the limit of everything that their needs name."""
    draws = random.Random(seed)
    all_of_them = {
        name: _Model(Simulation(each.scenario, seed + number), each, random.Random(draws.random()))
        for number, (name, each) in enumerate(models.items())
    }
    for each in all_of_them.values():
        for feeder in each.simulation.feeders:
            each.simulation.hold(feeder)
    most = dict.fromkeys(room, 0.0)
    end = max(each.scenario.duration_s + each.scenario.drain_s for each in models.values())
    look_at = math.inf
    while True:
        model = min(all_of_them.values(), key=lambda each: each.next_at)
        now = min(model.next_at, look_at)
        if now > end:
            break
        changed = now == look_at
        if not changed:
            changed = _step(model, now)
        if changed:
            look_at = _replan(all_of_them, room, now)
            _measure(all_of_them, most)
    return Shared(
        {name: each.simulation.report() for name, each in all_of_them.items()},
        {name: each.loads for name, each in all_of_them.items()},
        most,
    )


def _step(model: _Model, now: float) -> bool:
    """Do what is next for a model; returns whether the plan may be another now."""
    if now == model.due_at:
        model.enter(Stage.RESIDENT if model.stage is Stage.LOADING else Stage.UNLOADED, now)
        return True
    if now == model.simulation.next_at:
        model.simulation.step()
        model.notice(now)
        return model.stage is Stage.DRAINING
    # Something has come for a model that is not loaded.
    return True


def _replan(models: Mapping[str, _Model], room: Mapping[str, float], now: float) -> float:
    """Take the steps that are due; returns when there may be others."""
    while True:
        steps = plan([each.tenant(name, now) for name, each in models.items()], room, now)
        for stage, names in (
            (Stage.LEAVING, steps.unload),
            (Stage.DRAINING, steps.drain),
            (Stage.LOADING, steps.load),
        ):
            for name in names:
                models[name].enter(stage, now)
        if not (steps.unload or steps.drain or steps.load):
            return steps.look_at


def _measure(models: Mapping[str, _Model], most: dict[str, float]) -> None:
    taking = [each.given.needs for each in models.values() if each.stage is not Stage.UNLOADED]
    for limit, before in most.items():
        most[limit] = max(before, sum(needs.get(limit, 0.0) for needs in taking))
