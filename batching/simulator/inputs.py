"""Random inputs: arrivals, tiers, deadlines and shards before a run; jitter and faults while it runs.

Each has a random stream of its own, so a change of one (another policy, another fault) does not change the others: two
runs get the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from batching.simulator.arrivals import Callers, Recorded, Times
from batching.simulator.lanes import Lane, Ledger
from batching.simulator.queues import Queues
from batching.simulator.scenario import Scenario
from batching.simulator.shards import ShardedQueues

_BLOCK = 4096


class Draws:
    """The random numbers of one run."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        streams = [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(6)]
        self.arrivals, self.callers, self._service, self._trouble, back, self._owners = streams
        self._shards = scenario.shards
        self.jitter = scenario.service.jitter
        self._faults = scenario.faults
        self._spreads = self._uniform(self._service)
        self._chances = self._uniform(self._trouble)
        costs = scenario.overheads
        self.ways_back = costs.ways_back or ((costs.finish_item_s, costs.reply_item_s),)
        self._back = self._uniform(back)
        self._computed_s = 0.0
        self._next_crash_s = self._until_crash()

    def spread(self) -> float:
        """A factor around 1 for the time of a batch."""
        return 1 + self.jitter * (2 * next(self._spreads) - 1)

    def way_back(self) -> tuple[float, float]:
        """The time per request until the first answer of a batch, and the time from one answer to the next."""
        ways = self.ways_back
        return ways[int(next(self._back) * len(ways))] if len(ways) > 1 else ways[0]

    def shards(self, count: int) -> NDArray[np.int_]:
        """The shard of each of so many requests."""
        asked, random = self._shards, self._owners
        if not asked.owners:
            return random.integers(asked.count, size=count)
        weights = np.arange(1, asked.owners + 1, dtype=np.float64) ** -asked.skew
        shard_of = random.integers(asked.count, size=asked.owners)
        return shard_of[random.choice(asked.owners, size=count, p=weights / weights.sum())]

    def jitters(self, count: int) -> list[float]:
        return [next(self._chances) for _ in range(count)]

    def trouble(self, seconds: float) -> tuple[float, bool]:
        """The time that a batch really occupies its executor, and whether the executor dies of it."""
        faults = self._faults
        if faults.slow_rate and next(self._chances) < faults.slow_rate:
            seconds *= faults.slow_factor
        self._computed_s += seconds
        if self._computed_s >= self._next_crash_s:
            alive_s = max(0.0, seconds - (self._computed_s - self._next_crash_s))
            self._next_crash_s = self._computed_s + self._until_crash()
            return alive_s, True
        return (faults.timeout_s, True) if seconds > faults.timeout_s else (seconds, False)

    def fails(self, now: float) -> bool:
        """Return whether a batch that ends now raises a transient error."""
        start, end = self._faults.outage_s
        return start <= now < end or bool(self._faults.error_rate and next(self._chances) < self._faults.error_rate)

    def _until_crash(self) -> float:
        every_s = self._faults.crash_every_s
        return math.inf if every_s == math.inf else float(self._trouble.exponential(every_s))

    @staticmethod
    def _uniform(random: np.random.Generator) -> Iterator[float]:
        while True:
            yield from random.random(_BLOCK).tolist()


def make_queues(scenario: Scenario, draws: Draws) -> Queues | ShardedQueues:
    """The lanes, with every arrival that is known beforehand."""
    arrivals = scenario.arrivals
    calls = arrivals.times(scenario.duration_s, draws.arrivals)
    times = _in_turn(calls, scenario.overheads.submit_item_s) + scenario.overheads.submit_s
    if isinstance(arrivals, Recorded) and arrivals.ranks is not None:
        ranks = np.asarray(arrivals.ranks[: len(times)])
    elif max(scenario.tiers) == 1.0:
        ranks = np.full(len(times), scenario.tiers.index(1.0))
    else:
        ranks = draws.callers.choice(len(scenario.tiers), size=len(times), p=scenario.tiers)
    if scenario.gate is not None and isinstance(arrivals, Callers):
        raise ValueError("admission cannot be simulated with a closed loop: refused callers would call again at once")
    count = scenario.shards.count
    if count == 1:
        return _queues(scenario, draws, calls, times, ranks)
    shards = draws.shards(len(times))
    ledger = Ledger(answered=[[] for _ in range(count * len(scenario.tiers))])
    each = [
        _queues(scenario, draws, calls[mine], times[mine], ranks[mine], ledger)
        for mine in (shards == number for number in range(count))
    ]
    return ShardedQueues(each, ledger, reach=scenario.shards.reach)


def _queues(
    scenario: Scenario,
    draws: Draws,
    calls: Times,
    times: Times,
    ranks: NDArray[np.int_],
    ledger: Ledger | None = None,
) -> Queues:
    """The lanes of one shard. `times` are those at which the requests of `calls` reach the queue."""
    costs = scenario.overheads
    gate = scenario.gate(scenario) if scenario.gate else None
    lanes = []
    incoming: list[tuple[float, int, float, float]] = []
    for rank, (low_s, high_s) in enumerate(scenario.deadlines_s):
        mine, called = times[ranks == rank], calls[ranks == rank]
        deadlines = None
        if low_s != high_s:
            deadlines = (called + low_s + (high_s - low_s) * draws.callers.random(len(mine))).tolist()
        deadline_s = low_s - costs.submit_s
        if gate is not None:
            ends = deadlines or [math.inf] * len(mine)
            incoming += zip(mine.tolist(), [rank] * len(mine), ends, called.tolist(), strict=True)
            mine, called, deadlines = mine[:0], called[:0], None if deadlines is None else []
        limit_s = min(scenario.queue_timeout_s, deadline_s)
        lanes.append(
            Lane(mine.tolist(), limit_s, deadline_s, deadlines, called.tolist() if costs.submit_item_s else None)
        )
    incoming.sort()
    return Queues(
        lanes,
        max_batch_size=scenario.max_batch_size,
        max_attempts=scenario.faults.max_attempts,
        gate=gate,
        incoming=incoming,
        ledger=ledger,
    )


def _in_turn(calls: Times, item_s: float) -> Times:
    """The times at which each is done at a server that needs `item_s` for one: Lindley's recursion, unrolled."""
    if not item_s:
        return calls
    before = item_s * np.arange(len(calls))
    through: Times = np.maximum.accumulate(calls - before) + before + item_s
    return through
