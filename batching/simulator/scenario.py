"""The description of one run: its load, its fleet and its rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batching.policy import Policy
from batching.simulator.arrivals import Arrivals
from batching.simulator.faults import Faults
from batching.simulator.service import Service


class Gate(Protocol):
    """An admission policy that decides on each arrival."""

    def refuses(self, now: float, rank: int, depths: Sequence[int]) -> str | None:
        """The reason of a refusal, or None. `depths` are the waiting requests per tier, highest first."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a queue; all requests of an owner are on one of them.

    Args:
        reach: the most shards from which one batch is claimed; a worker has no limit.
        owners: number of owners; 0: so many that each request is on any shard.
        skew: the n-th largest owner sends a share of the requests that is proportional to n^-skew (Zipf).
    """

    count: int = 1
    reach: int = 1_000_000
    owners: int = 0
    skew: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"shards must be at least 1, are {self.count}")
        if self.reach < 1:
            raise ValueError(f"a claim must reach at least 1 shard, reaches {self.reach}")
        if self.owners < 0 or self.skew < 0:
            raise ValueError(f"owners and skew must be at least 0, are {self.owners} and {self.skew}")


@dataclass(frozen=True, slots=True)
class Overheads:
    """The cost of each step besides the model, in seconds. By default nothing costs anything.

    Args:
        submit_s: from the caller to the queue (HTTP, outbox, the submit script).
        submit_item_s: between simultaneous requests: a frontend handles them in turn.
        look_s: reading the depths.
        claim_s: from the decision to the batch's arrival in the executor (script, parsing, pipe).
        claim_item_s: the addition per request of the batch; none while another batch computes.
        visit_s: the addition per shard that a claim visits after the first; likewise.
        collect_s: from the end of a batch until the feeder knows it.
        reply_s: from then until the first caller has its answer (finish script, reply, HTTP).
        finish_item_s: the addition per request of the batch, since outcomes are stored as a whole.
        reply_item_s: between one answer of a batch and the next.
        ways_back: pairs (`finish_item_s`, `reply_item_s`) of real batches; one is drawn for each batch and replaces
            those two. Batches are not answered alike, and a caller that is answered late sends its next request late.
    """

    submit_s: float = 0.0
    submit_item_s: float = 0.0
    look_s: float = 0.0
    claim_s: float = 0.0
    claim_item_s: float = 0.0
    visit_s: float = 0.0
    collect_s: float = 0.0
    reply_s: float = 0.0
    finish_item_s: float = 0.0
    reply_item_s: float = 0.0
    ways_back: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All settings of a run, except its seed.

    Args:
        policy: factory of the policy of one executor; each has its own, as in a worker.
        max_batch_size: that of the policy, for other rules that depend on it (suspects).
        batch_sizes: the only sizes that reach the model, ascending, each warmed up before the run; none: any.
        new_size_s: addition to the first batch of each size on each executor, for a model that compiles for it.
        executors: number of executors; a model's instances over all workers.
        shards: those of the queue; with more than one, admission cannot be simulated.
        tiers: shares of the arrivals by tier, highest first; they sum to 1.
        deadlines_s: per tier the shortest and the longest deadline of callers (uniform); infinite: none.
        queue_timeout_s: requests that have waited this long are dropped at the claim.
        slo_s: an answer within it counts for goodput, if it is within the caller's deadline too.
        gate: factory of the admission rule; None: every request is let in.
        warm_up_s: earlier arrivals are served but not counted.
        drain_s: time after the last arrival, after which waiting requests stay unanswered.
    """

    arrivals: Arrivals
    service: Service
    policy: Callable[[], Policy]
    duration_s: float
    max_batch_size: int = 64
    batch_sizes: tuple[int, ...] = ()
    new_size_s: float = 0.0
    executors: int = 1
    name: str = ""
    shards: Shards = field(default_factory=Shards)
    tiers: tuple[float, float, float] = (0.0, 1.0, 0.0)
    deadlines_s: tuple[tuple[float, float], ...] = ((math.inf, math.inf),) * 3
    queue_timeout_s: float = math.inf
    slo_s: float = math.inf
    overheads: Overheads = field(default_factory=Overheads)
    faults: Faults = field(default_factory=Faults)
    gate: Callable[[Scenario], Gate] | None = None
    warm_up_s: float = 0.0
    drain_s: float = 300.0

    def __post_init__(self) -> None:
        if self.executors < 1:
            raise ValueError(f"executors must be at least 1, is {self.executors}")
        if not self.duration_s > 0:
            raise ValueError(f"duration_s must be above 0, is {self.duration_s}")
        if min(self.tiers) < 0 or abs(sum(self.tiers) - 1) > 1e-6:
            raise ValueError(f"the mix of tiers must sum to 1, is {self.tiers}")
        if self.gate is not None and self.shards.count > 1:
            raise ValueError("admission cannot be simulated with several shards: each admits for itself")
