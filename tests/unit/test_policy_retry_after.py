"""The time that a refused caller is told, against when the rule lets one in again: queues drained in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import pytest

from batching.policy import Admission, Form, Pressure, Shed

ENTERPRISE, PAID, FREE = range(3)
STEP_S = 0.01


@dataclass
class Queues:
    """Three tiers before executors that take a batch of `full` each `full / rate` seconds, the highest tier first."""

    rate: float
    full: int
    depths: list[int]
    comes: tuple[float, float, float] = (0.0, 0.0, 0.0)
    own: int = 0

    def __post_init__(self) -> None:
        self.now = 0.0
        self._claims = self._due = 0.0
        self._came = [0.0, 0.0, 0.0]
        self._claims = self.full / self.rate

    def step(self) -> None:
        self.now += STEP_S
        for tier, rate in enumerate(self.comes):
            self._came[tier] += rate * STEP_S
            whole = int(self._came[tier])
            self._came[tier] -= whole
            self.depths[tier] += whole
        if self.now >= self._claims - 1e-9:
            self._claims += self.full / self.rate
            left = self.full
            for tier in range(3):
                taken = min(left, self.depths[tier])
                if self.own and tier == PAID and self.depths[tier]:
                    # A greedy key has most of its tier: its part of what is taken.
                    self.own -= min(self.own, round(taken * self.own / self.depths[tier]))
                self.depths[tier] -= taken
                left -= taken

    def pressure(self, burst: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Pressure:
        arrivals = tuple(max(pair) for pair in zip(self.comes, burst, strict=True))
        seconds = self.full / self.rate
        return Pressure(tuple(self.depths), arrivals, self.rate, seconds / 2, seconds, self.full, steady=self.comes)


def told_and_true(
    queues: Queues, tell: Callable[[Queues], float | None], let_in: Callable[[Queues], bool]
) -> list[float]:
    """Told ÷ true of every refusal until somebody is let in."""
    told: list[tuple[float, float]] = []
    while not let_in(queues):
        seconds = tell(queues)
        assert seconds is not None
        told.append((queues.now, seconds))
        queues.step()
        assert queues.now < 120
    return [seconds / (queues.now - at) for at, seconds in told]


def within_two(ratios: list[float]) -> None:
    """Nearly all: close to the end of a batch nobody can know how close."""
    assert len(ratios) >= 3
    assert 0.5 <= median(ratios) <= 2
    inside = sum(0.5 <= each <= 2 for each in ratios) / len(ratios)
    assert inside >= 0.8, sorted(ratios)


RULE = Admission(thresholds=(math.inf, 1.5, 0.5))


def asking(rule: Admission, rank: int, *, keyed: bool = False, **limits: float) -> tuple[Callable, Callable]:
    times = {"deadline_s": 10.0, "queue_limit_s": 2.0} | limits

    def tell(queues: Queues) -> float | None:
        pressure = queues.pressure()
        why = rule.judge(pressure, rank, own=queues.own, keyed=keyed, **times)
        return None if why is None else rule.retry_s(pressure, rank, why, own=queues.own, limit=20_000, **times)

    def let_in(queues: Queues) -> bool:
        return rule.judge(queues.pressure(), rank, own=queues.own, keyed=keyed, **times) is None

    return tell, let_in


@pytest.mark.parametrize("full", [1, 8, 64])
@pytest.mark.parametrize("comes", [(0.0, 0.0, 0.0), (10.0, 0.0, 0.0), (10.0, 30.0, 0.0)])
def test_behind_tiers_that_are_let_in(full: int, comes: tuple[float, float, float]) -> None:
    """480 paid at 80 a second: free is told that for all of these, not for its own empty queue."""
    queues = Queues(80.0, full, [0, 480, 0], comes)
    tell, let_in = asking(RULE, FREE)
    first = tell(queues)
    assert first is not None
    assert first > 4
    within_two(told_and_true(queues, tell, let_in))


def test_a_burst_is_not_taken_for_what_goes_on() -> None:
    queues = Queues(80.0, 8, [0, 480, 0])
    why = Shed.PRESSURE
    told = RULE.retry_s(
        queues.pressure((0.0, 480.0, 0.0)), FREE, why, own=0, limit=1, deadline_s=10.0, queue_limit_s=2.0
    )
    _, let_in = asking(RULE, FREE)
    while not let_in(queues):
        queues.step()
    assert 0.5 <= told / queues.now <= 2


@pytest.mark.parametrize("own", [60, 200])
def test_a_key_with_its_share_of_the_queue(own: int) -> None:
    queues = Queues(100.0, 10, [0, 220, 0], own=own)
    rule = Admission(thresholds=(math.inf, 3.5, 0.5))
    within_two(told_and_true(queues, *asking(rule, PAID, keyed=True)))


@pytest.mark.parametrize(("deadline_s", "queue_limit_s"), [(10.0, 2.0), (1.0, 1.0), (0.4, 2.0)])
def test_what_would_be_hopeless_now(deadline_s: float, queue_limit_s: float) -> None:
    queues = Queues(100.0, 10, [450, 0, 0])
    within_two(told_and_true(queues, *asking(RULE, ENTERPRISE, deadline_s=deadline_s, queue_limit_s=queue_limit_s)))


def test_a_deadline_that_no_batch_keeps_is_no_matter_of_time() -> None:
    pressure = replace(Queues(100.0, 10, [20, 0, 0]).pressure(), first_s=0.5, full_s=1.0)
    told = RULE.retry_s(pressure, ENTERPRISE, Shed.DEADLINE, own=0, limit=1, deadline_s=0.1, queue_limit_s=2.0)
    assert told >= 1


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_full_queue(ahead: int) -> None:
    limit = 100
    ratios: list[float] = []
    for late in range(10):
        queues = Queues(50.0, 10, [ahead, limit, 0])
        for _ in range(late * 2):
            queues.step()
        queues.depths = [ahead, limit, 0]

        def tell(queues: Queues) -> float:
            times = {"deadline_s": 10.0, "queue_limit_s": 60.0}
            return RULE.retry_s(queues.pressure(), PAID, Shed.QUEUE_FULL, own=0, limit=limit, **times)

        ratios += told_and_true(queues, tell, lambda queues: queues.depths[PAID] < limit)[:1]
    assert 0.5 <= median(ratios) <= 2


def test_nothing_is_foretold_without_a_rate() -> None:
    pressure = Pressure((0, 500, 0), (0.0, 0.0, 0.0), 0.0)
    for rule in (RULE, Admission(Form.OFF)):
        assert rule.retry_s(pressure, FREE, Shed.QUEUE_FULL, own=0, limit=1, deadline_s=1.0, queue_limit_s=1.0) == 1.0
