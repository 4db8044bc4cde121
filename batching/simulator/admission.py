"""The frontend's admission rule behind the `Gate` port, with the figures that the frontend would see."""

from __future__ import annotations

import math
from collections.abc import Sequence

from batching.policy.admission import Admission, Pressure
from batching.simulator.scenario import Scenario


class AdmissionGate:
    """`Admission` for one scenario. Admitted requests are counted per whole second, as `submit.lua` counts them."""

    def __init__(self, rule: Admission, scenario: Scenario) -> None:
        full = scenario.max_batch_size
        self._rule = rule
        self._full = float(full)
        self._full_s = scenario.service.seconds(full)
        self._first_s = scenario.service.seconds(1)
        self._rate = scenario.executors * full / self._full_s
        self._deadlines_s = [low_s for low_s, _ in scenario.deadlines_s]
        self._queue_limit_s = scenario.queue_timeout_s
        self._second = 0
        self._now = [0] * len(scenario.tiers)
        self._before = [0.0] * len(scenario.tiers)

    def refuses(self, now: float, rank: int, depths: Sequence[int]) -> str | None:
        self._turn_to(math.floor(now))
        pressure = Pressure(tuple(depths), tuple(self._before), self._rate, self._first_s, self._full_s, self._full)
        shed = self._rule.judge(
            pressure,
            rank,
            own=0,
            keyed=False,
            deadline_s=self._deadlines_s[rank],
            queue_limit_s=self._queue_limit_s,
        )
        if shed is not None:
            return shed.value
        self._now[rank] += 1
        return None

    def _turn_to(self, second: int) -> None:
        if second == self._second:
            return
        tiers = len(self._now)
        self._before = [float(each) for each in self._now] if second == self._second + 1 else [0.0] * tiers
        self._now = [0] * tiers
        self._second = second
