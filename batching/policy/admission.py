"""Whether one more request is let in, by what waits already and how fast it is served.

rate      = requests a second that the fleet can do: what its healthy executors were measured at
capacity  = rate × headroom (0.7): what is promised
waits too much   a tier's threshold, as the time that `capacity` needs for all that waits, or as a count
share            a caller's own requests count twice: with one caller alone half of the threshold is left to the others,
                 who are never refused for what somebody else has queued (dynamic thresholds: Choudhury and Hahne, 1998)
hopeless         it would not be served before its deadline or its queue limit

While no rate has been measured nothing is predicted, and nobody is refused on a prediction.
`tasks/lua/pressure.lua` is the same arithmetic; tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES


class Shed(str, Enum):
    """Why a request was refused; the value is the label of `bunch_shed_total`."""

    QUEUE_FULL = "queue_full"
    RATE = "rate"
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

    `rate` is 0 while none has been measured; `first_s` is what a batch of one takes, `full_s` one of `full`.
    """

    depths: tuple[int, ...]
    arrivals: tuple[float, ...]
    rate: float
    first_s: float = 0.0
    full_s: float = 0.0
    full: float = 1.0


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
        batch_s = pressure.first_s + (pressure.full_s - pressure.first_s) * min(1.0, waiting / pressure.full)
        return Shed.DEADLINE if wait_s > queue_limit_s or wait_s + batch_s > deadline_s else None
