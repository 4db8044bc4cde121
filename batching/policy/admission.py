"""Admission control: decides whether a request is let in, by the queue and the measured throughput.

rate      = requests per second that the fleet can serve: the measured throughput of its healthy executors
capacity  = rate × headroom (0.7): the promised throughput
waits too much   a tier's threshold, as the time that `capacity` needs to drain the queue, or as a count
share            a caller's own requests count twice: with one caller alone half of the threshold is left to the others,
                 who are never refused for another caller's requests (dynamic thresholds: Choudhury and Hahne, 1998)
hopeless         it would not be served before its deadline or its queue limit

Until a rate has been measured nothing is predicted, and nobody is refused on a prediction. A refusal says when the same
rule will let a request in again, if the load stays as it is.
`tasks/lua/pressure.lua` and `later.lua` have the same arithmetic; tests prove that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES


class Shed(str, Enum):
    """The reason of a refusal; the value is the label of `bunch_shed_total`."""

    QUEUE_FULL = "queue_full"
    RATE = "rate"
    CLIENT = "client"
    MEMORY = "memory"
    PRESSURE = "pressure"
    SHARE = "share"
    DEADLINE = "deadline"


class Form(str, Enum):
    """The unit of a tier's threshold: the time to drain the queue, its depth, or no threshold."""

    DRAIN = "drain"
    DEPTH = "depth"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The load of a model at one time: waiting requests per tier, highest first, and recently admitted requests per
    second.

    `rate` is 0 until it has been measured; `first_s` is the time of a batch of one, `full_s` that of a batch of `full`.
    `steady` is the rate per tier that arrived in each of the last seconds: a burst is in `arrivals` alone.
    """

    depths: tuple[int, ...]
    arrivals: tuple[float, ...]
    rate: float
    first_s: float = 0.0
    full_s: float = 0.0
    full: float = 1.0
    steady: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def waiting(self) -> int:
        return sum(self.depths)

    @property
    def batch_s(self) -> float:
        """The time of a batch of all waiting requests, at most a full one."""
        return self.first_s + (self.full_s - self.first_s) * min(1.0, self.waiting / self.full)


# The delay that a refused caller gets when nothing can be predicted, and the maximum.
LATER_S = 1.0
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission rule. `thresholds` are per tier, in seconds (`DRAIN`) or requests (`DEPTH`); infinite: none."""

    form: Form = Form.DRAIN
    thresholds: tuple[float, ...] = (math.inf, 1.5, 0.5)
    headroom: float = 0.7
    shares: Sequence[float] = DEFAULT_SHARES
    ageing_s: float = DEFAULT_AGEING_S

    def wait_s(self, pressure: Pressure, rank: int) -> float:
        """The time until the waiting requests of this tier and those above it are served; 0 while no rate is known.

        Requests of higher tiers go first, including later ones, and lower tiers take their shares. A tier that has aged
        is sure of its larger share, whatever the others do.
        """
        rate, depths = pressure.rate, pressure.depths
        if rate <= 0:
            return 0.0
        lower = sum(self.shares[i] for i in range(rank + 1, len(depths)) if depths[i] > 0)
        left = rate * (1 - lower) - sum(pressure.arrivals[:rank])
        by_preference = sum(depths[: rank + 1]) / left if left > 0 else math.inf
        if rank == 0:
            return by_preference
        return min(by_preference, self.ageing_s + depths[rank] / (AGED_SHARE * rate))

    def room(self, pressure: Pressure, rank: int, queue_limit_s: float) -> float:
        """The number of requests that may wait, in all tiers, for one more of this tier to be let in; infinite: any."""
        threshold = self.thresholds[rank]
        capacity = pressure.rate * self.headroom
        if self.form is Form.OFF:
            return math.inf
        if self.form is Form.DEPTH:
            lowest = rank == len(self.thresholds) - 1
            over = lowest and 0 < capacity < sum(pressure.arrivals)
            return -1.0 if over else threshold
        if pressure.rate <= 0:
            return math.inf
        # Without a threshold, the queue limit is one: a request that would wait longer expires.
        return threshold * capacity if threshold < math.inf else queue_limit_s * pressure.rate

    def judge(
        self, pressure: Pressure, rank: int, *, own: int, keyed: bool, deadline_s: float, queue_limit_s: float
    ) -> Shed | None:
        """The reason to refuse one more request, or None. `own` is how many of the same key already wait in the same
        tier.
        """
        waiting = sum(pressure.depths)
        room = self.room(pressure, rank, queue_limit_s)
        if waiting > room and self.thresholds[rank] < math.inf:
            return Shed.PRESSURE
        if keyed and waiting + own > room:
            return Shed.SHARE
        wait_s = self.wait_s(pressure, rank)
        if self.form is Form.OFF or not wait_s:
            return None
        # Its own batch is about as large as the queue.
        return Shed.DEADLINE if wait_s > queue_limit_s or wait_s + pressure.batch_s > deadline_s else None

    def retry_s(
        self, pressure: Pressure, rank: int, why: Shed, *, own: int, limit: int, deadline_s: float, queue_limit_s: float
    ) -> float:
        """The seconds until `why`, a reason of `judge`'s or `QUEUE_FULL` with `limit`, lets a request in again.

        `RATE` and `MEMORY` are decided elsewhere; here they only get the shortest delay.
        """
        if pressure.rate <= 0 or self.form is Form.OFF or why in {Shed.RATE, Shed.MEMORY}:
            return LATER_S
        room = self.room(pressure, rank, queue_limit_s)
        match why:
            case Shed.PRESSURE if room < 0:
                # More arrives than the capacity; in a second it may be less.
                seconds = LATER_S
            case Shed.PRESSURE:
                each = _a_batch(pressure) * _lessens(pressure, rank, 0.0)
                seconds = _claims_s(pressure, pressure.waiting - math.floor(room), each)
            case Shed.SHARE:
                # Others of its tier are let in meanwhile, and its own requests count twice.
                mine = min(1.0, own / max(1, pressure.waiting))
                each = _a_batch(pressure) * _lessens(pressure, rank, 1 - mine) * (1 + mine)
                seconds = _claims_s(pressure, pressure.waiting + own - math.floor(room), each)
            case Shed.QUEUE_FULL:
                ahead, size = sum(pressure.depths[:rank]), _a_batch(pressure)
                # Behind a higher tier that fills batches, it has the share of an aged tier.
                each = size - ahead if ahead < size else AGED_SHARE * size
                seconds = _claims_s(pressure, pressure.depths[rank] - limit + 1, each)
            case _:
                seconds = self._hopeless_s(pressure, rank, deadline_s, queue_limit_s)
        return max(0.001, min(MOST_S, seconds))

    def _hopeless_s(self, pressure: Pressure, rank: int, deadline_s: float, queue_limit_s: float) -> float:
        """The seconds until a request is not hopeless: its wait shrinks by one second per second."""
        wait_s = self.wait_s(replace(pressure, arrivals=pressure.steady), rank)
        # Its batch would then be as large as the queue.
        time_s = deadline_s - pressure.full_s
        if time_s * pressure.rate < pressure.full:
            more = (pressure.full_s - pressure.first_s) * pressure.rate / pressure.full
            time_s = (deadline_s - pressure.first_s) / (1 + more)
        time_s = min(time_s, queue_limit_s)
        # No wait helps when even an empty queue cannot meet the deadline.
        if time_s <= 0:
            return max(wait_s, LATER_S)
        return max(0.0, wait_s - time_s) + _claims_s(pressure, 1, 1.0)


def _a_batch(pressure: Pressure) -> float:
    return max(1.0, min(pressure.full, pressure.waiting))


def _lessens(pressure: Pressure, rank: int, others: float) -> float:
    """The part of the rate that shortens the queue while the tiers above continue as they are; never zero."""
    left = pressure.rate
    for each in pressure.steady[:rank]:
        left -= each
    return max(0.1, (left - pressure.steady[rank] * others) / pressure.rate)


def _claims_s(pressure: Pressure, excess: int, each: float) -> float:
    """The seconds until `excess` requests have left, `each` with every batch; on average half a batch is done."""
    interval_s = pressure.full / pressure.rate
    if pressure.full_s > 0:
        interval_s *= pressure.batch_s / pressure.full_s
    return (max(1, math.ceil(excess / each)) - 0.5) * interval_s
