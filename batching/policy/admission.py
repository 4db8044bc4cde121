"""Whether one more request is let in, by what waits already and how fast it is served.

rate      = requests a second that the fleet can do: what its healthy executors were measured at
capacity  = rate × headroom (0.7): what is promised
waits too much   a tier's threshold, as the time that `capacity` needs for all that waits, or as a count
share            a caller's own requests count twice: with one caller alone half of the threshold is left to the others,
                 who are never refused for what somebody else has queued (dynamic thresholds: Choudhury and Hahne, 1998)
hopeless         it would not be served before its deadline or its queue limit

While no rate has been measured nothing is predicted, and nobody is refused on a prediction. Who is refused is told when
the rule that refused will let one in again, if what goes on now goes on.
`tasks/lua/pressure.lua` and `later.lua` are the same arithmetic; tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES


class Shed(str, Enum):
    """Why a request was refused; the value is the label of `bunch_shed_total`."""

    QUEUE_FULL = "queue_full"
    RATE = "rate"
    CLIENT = "client"
    MEMORY = "memory"
    PRESSURE = "pressure"
    SHARE = "share"
    DEADLINE = "deadline"


class Form(str, Enum):
    """How a tier's threshold is meant: the time to drain what waits, its number, or not at all."""

    DRAIN = "drain"
    DEPTH = "depth"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Pressure:
    """A model at one moment: what waits per tier, highest first, and requests a second let in of late.

    `rate` is 0 while none has been measured; `first_s` is what a batch of one takes, `full_s` one of `full`. `steady`
    is what has come per tier in each of the last seconds: a burst is in `arrivals` alone.
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
        """What a batch of as many as wait takes."""
        return self.first_s + (self.full_s - self.first_s) * min(1.0, self.waiting / self.full)


# What a refused caller is told when nothing can be foretold, and at most.
LATER_S = 1.0
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Admission:
    """The rule. `thresholds` are per tier, in seconds (`DRAIN`) or requests (`DEPTH`); infinite: none."""

    form: Form = Form.DRAIN
    thresholds: tuple[float, ...] = (math.inf, 1.5, 0.5)
    headroom: float = 0.7
    shares: Sequence[float] = DEFAULT_SHARES
    ageing_s: float = DEFAULT_AGEING_S

    def wait_s(self, pressure: Pressure, rank: int) -> float:
        """How long until what waits now, of this tier and those above it, is served; 0 while no rate is known.

        Higher tiers go first, also those requests that come meanwhile, and lower ones take their shares. A tier that
        has aged is sure of its larger share, whatever the others do.
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
        """How many may wait, in all tiers together, for one more of this tier to be let in; infinite: any number."""
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
        # Without a threshold the queue limit is one: what would wait longer is expired.
        return threshold * capacity if threshold < math.inf else queue_limit_s * pressure.rate

    def judge(
        self, pressure: Pressure, rank: int, *, own: int, keyed: bool, deadline_s: float, queue_limit_s: float
    ) -> Shed | None:
        """Refuse one more request, or None. `own` is what waits already of the same key in the same tier."""
        waiting = sum(pressure.depths)
        room = self.room(pressure, rank, queue_limit_s)
        if waiting > room and self.thresholds[rank] < math.inf:
            return Shed.PRESSURE
        if keyed and waiting + own > room:
            return Shed.SHARE
        wait_s = self.wait_s(pressure, rank)
        if self.form is Form.OFF or not wait_s:
            return None
        # Its own batch is about as large as what waits.
        return Shed.DEADLINE if wait_s > queue_limit_s or wait_s + pressure.batch_s > deadline_s else None

    def retry_s(
        self, pressure: Pressure, rank: int, why: Shed, *, own: int, limit: int, deadline_s: float, queue_limit_s: float
    ) -> float:
        """When `why`, a reason of `judge`'s or `QUEUE_FULL` with `limit`, lets one in again.

        Of `RATE` and `MEMORY` others know more; here it is only that they may pass.
        """
        if pressure.rate <= 0 or self.form is Form.OFF or why in {Shed.RATE, Shed.MEMORY}:
            return LATER_S
        room = self.room(pressure, rank, queue_limit_s)
        match why:
            case Shed.PRESSURE if room < 0:
                # More comes than is promised: a second later it may be less.
                seconds = LATER_S
            case Shed.PRESSURE:
                each = _a_batch(pressure) * _lessens(pressure, rank, 0.0)
                seconds = _claims_s(pressure, pressure.waiting - math.floor(room), each)
            case Shed.SHARE:
                # The others of its tier are let in meanwhile, and what it has itself counts twice.
                mine = min(1.0, own / max(1, pressure.waiting))
                each = _a_batch(pressure) * _lessens(pressure, rank, 1 - mine) * (1 + mine)
                seconds = _claims_s(pressure, pressure.waiting + own - math.floor(room), each)
            case Shed.QUEUE_FULL:
                ahead, size = sum(pressure.depths[:rank]), _a_batch(pressure)
                # Behind a higher tier that fills batches it has the share of one that has aged.
                each = size - ahead if ahead < size else AGED_SHARE * size
                seconds = _claims_s(pressure, pressure.depths[rank] - limit + 1, each)
            case _:
                seconds = self._hopeless_s(pressure, rank, deadline_s, queue_limit_s)
        return max(0.001, min(MOST_S, seconds))

    def _hopeless_s(self, pressure: Pressure, rank: int, deadline_s: float, queue_limit_s: float) -> float:
        """Its wait grows shorter by a second a second, until there is time enough for it and its batch."""
        wait_s = self.wait_s(replace(pressure, arrivals=pressure.steady), rank)
        # The batch that it would be in then is as large as what waits then.
        time_s = deadline_s - pressure.full_s
        if time_s * pressure.rate < pressure.full:
            more = (pressure.full_s - pressure.first_s) * pressure.rate / pressure.full
            time_s = (deadline_s - pressure.first_s) / (1 + more)
        time_s = min(time_s, queue_limit_s)
        # A deadline that no batch keeps is no matter of time.
        if time_s <= 0:
            return max(wait_s, LATER_S)
        return max(0.0, wait_s - time_s) + _claims_s(pressure, 1, 1.0)


def _a_batch(pressure: Pressure) -> float:
    return max(1.0, min(pressure.full, pressure.waiting))


def _lessens(pressure: Pressure, rank: int, others: float) -> float:
    """The part of the rate that lessens what waits, while the tiers above go on as they have; never none."""
    left = pressure.rate
    for each in pressure.steady[:rank]:
        left -= each
    return max(0.1, (left - pressure.steady[rank] * others) / pressure.rate)


def _claims_s(pressure: Pressure, excess: int, each: float) -> float:
    """Until `excess` have left, `each` with every batch; one is half over, on average."""
    interval_s = pressure.full / pressure.rate
    if pressure.full_s > 0:
        interval_s *= pressure.batch_s / pressure.full_s
    return (max(1, math.ceil(excess / each)) - 0.5) * interval_s
