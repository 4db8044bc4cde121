"""The published designs as scenarios: load, model, fleet and objective.

The time of a batch is fixed, as in the designs, whatever its size. Each design runs with even (Poisson) traffic, and
with *uneven* traffic of the same mean: a fifth above it and a fifth below it in turn, ten seconds each. Real traffic
varies like that, and a fleet at 98 % has no capacity left for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from batching.capacity.formulas import batches, gpus_for, rate_of_one
from batching.capacity.search import Objective, smallest_fleet
from batching.policy import Policy
from batching.simulator import Affine, Overheads, Poisson, Report, Scenario, Steps, simulate

# Makes a factory of an executor's policy from: name, maximum batch size, maximum wait in seconds.
Maker = Callable[[str, int, float], Callable[[], Policy]]

_UNEVEN = 0.2
_UNEVEN_S = 10.0
_DURATION_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A published design. `overhead_s` is the time that it adds to a batch itself (transfer, batching)."""

    name: str
    what: str
    rps: float
    batch_s: float
    max_batch_size: int
    max_wait_s: float
    gpus: int
    objective: Objective
    tiers: tuple[float, float, float] = (0.0, 1.0, 0.0)
    overhead_s: float = 0.0

    @property
    def rate(self) -> float:
        """Requests per second of one GPU, by the design's own formula."""
        return rate_of_one(self.max_batch_size, self.batch_s, self.overhead_s)

    @property
    def use(self) -> float:
        """The utilisation of the fleet at the mean rate, if every batch is full."""
        return self.rps / (self.gpus * rate_of_one(self.max_batch_size, self.batch_s))

    def scenario(self, policy: Callable[[], Policy], *, uneven: bool, overheads: Overheads) -> Scenario:
        turns = [
            (n * _UNEVEN_S, self.rps * (1 + _UNEVEN * (-1) ** n)) for n in range(math.ceil(_DURATION_S / _UNEVEN_S))
        ]
        return Scenario(
            name=self.name,
            arrivals=Steps(turns) if uneven else Poisson(self.rps),
            service=Affine(self.batch_s),
            policy=policy,
            duration_s=_DURATION_S,
            max_batch_size=self.max_batch_size,
            executors=self.gpus,
            tiers=self.tiers,
            slo_s=self.objective.slo_s,
            overheads=overheads,
        )


DESIGNS: tuple[Design, ...] = (
    Design(
        name="A",
        what="10,000/s, 200 ms per batch of 64, 32 GPUs, p99 < 500 ms",
        rps=10_000,
        batch_s=0.2,
        max_batch_size=64,
        max_wait_s=0.05,
        gpus=32,
        objective=Objective(0.5),
    ),
    Design(
        name="B",
        what="10,000/s, 20 batches/s of 50, 10 GPUs, p99 < 500 ms",
        rps=10_000,
        batch_s=0.05,
        max_batch_size=50,
        max_wait_s=0.05,
        gpus=10,
        objective=Objective(0.5),
    ),
    Design(
        name="E",
        what="1,000/s, 100 ms per batch of 32, 6 GPUs, p95 < 200 ms",
        rps=1_000,
        batch_s=0.1,
        max_batch_size=32,
        max_wait_s=0.05,
        gpus=6,
        objective=Objective(0.2, 0.95),
    ),
    Design(
        name="D",
        what="1,000/s, 50 + 5 ms per batch of 32, 4 GPUs at 70 %, p95 < 500 ms, tiers 5/25/70",
        rps=1_000,
        batch_s=0.055,
        max_batch_size=32,
        max_wait_s=0.04,
        gpus=4,
        objective=Objective(0.5, 0.95),
        tiers=(0.05, 0.25, 0.70),
        overhead_s=0.02,
    ),
    Design(
        name="D, peak",
        what="the same at its peak of 3,000/s",
        rps=3_000,
        batch_s=0.055,
        max_batch_size=32,
        max_wait_s=0.04,
        gpus=4,
        objective=Objective(0.5, 0.95),
        tiers=(0.05, 0.25, 0.70),
        overhead_s=0.02,
    ),
    Design(
        name="D, grown",
        what="the same at 10,000/s, 34 GPUs",
        rps=10_000,
        batch_s=0.055,
        max_batch_size=32,
        max_wait_s=0.04,
        gpus=34,
        objective=Objective(0.5, 0.95),
        tiers=(0.05, 0.25, 0.70),
        overhead_s=0.02,
    ),
    Design(
        name="D, grown, peak",
        what="the same at three times that, 30,000/s, 100 GPUs",
        rps=30_000,
        batch_s=0.055,
        max_batch_size=32,
        max_wait_s=0.04,
        gpus=100,
        objective=Objective(0.5, 0.95),
        tiers=(0.05, 0.25, 0.70),
        overhead_s=0.02,
    ),
    # The design's own rule, 320/s per GPU at 70 %, for the two loads that it gives without a fleet.
    Design(
        name="E, at 5,000",
        what="5,000/s, 100 ms per batch of 32, 23 GPUs, p95 < 200 ms",
        rps=5_000,
        batch_s=0.1,
        max_batch_size=32,
        max_wait_s=0.05,
        gpus=23,
        objective=Objective(0.2, 0.95),
    ),
    Design(
        name="E, at 10,000",
        what="10,000/s, 100 ms per batch of 32, 45 GPUs, p95 < 200 ms",
        rps=10_000,
        batch_s=0.1,
        max_batch_size=32,
        max_wait_s=0.05,
        gpus=45,
        objective=Objective(0.2, 0.95),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one policy for one design. `smallest` is None when no fleet up to twice the design's size meets the
    objective.
    """

    policy: str
    even: Report
    uneven: Report
    holds_even: bool
    holds_uneven: bool
    smallest_even: int | None
    smallest_uneven: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A design, the results of its formulas and of queueing theory, and the outcome of each policy."""

    design: Design
    raw: int
    at_70: int
    queueing_wait_s: float
    outcomes: Mapping[str, Outcome]


def replay(design: Design, policies: Sequence[str], make: Maker, overheads: Overheads, seed: int = 1) -> Replay:
    """Simulate the design's fleet, and find the smallest one, under every policy."""
    outcomes = {}
    # A fleet that is overloaded at the mean rate need not be tried.
    least = gpus_for(design.rps, rate_of_one(design.max_batch_size, design.batch_s), 1.0)
    most = max(2 * design.gpus, 3 * least)
    for name in policies:
        policy = make(name, design.max_batch_size, design.max_wait_s)
        even, uneven = (design.scenario(policy, uneven=each, overheads=overheads) for each in (False, True))
        reports = [simulate(each, seed) for each in (even, uneven)]
        found = [smallest_fleet(each, design.objective, least=least, most=most, seed=seed) for each in (even, uneven)]
        outcomes[name] = Outcome(
            policy=name,
            even=reports[0],
            uneven=reports[1],
            holds_even=design.objective.is_held(reports[0]),
            holds_uneven=design.objective.is_held(reports[1]),
            smallest_even=found[0].executors if found[0] else None,
            smallest_uneven=found[1].executors if found[1] else None,
        )
    return Replay(
        design=design,
        raw=gpus_for(design.rps, design.rate, 1.0),
        at_70=gpus_for(design.rps, design.rate),
        queueing_wait_s=batches(design.rps, design.gpus, design.max_batch_size, design.batch_s).wait_s(
            design.objective.fraction
        ),
        outcomes=outcomes,
    )
