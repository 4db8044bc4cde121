"""Finds the smallest fleet that meets an objective, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from batching.simulator import Report, Scenario, simulate


@dataclass(frozen=True, slots=True)
class Objective:
    """`fraction` of all requests answered within `slo_s`; 0.99 and 0.5 are "p99 < 500 ms"."""

    slo_s: float
    fraction: float = 0.99

    def is_held(self, report: Report) -> bool:
        """Return whether the objective is met. Requests that were refused or not answered count as late."""
        return self.attainment(report) >= self.fraction

    def attainment(self, report: Report) -> float:
        """The fraction of the offered requests that were answered in time."""
        in_time = sum(int((each <= self.slo_s).sum()) for each in report.latencies_s)
        counted = sum(len(each) for each in report.latencies_s)
        lost = report.requests - report.answered
        return in_time / (counted + lost) if counted + lost else 1.0


@dataclass(frozen=True, slots=True)
class Found:
    executors: int
    report: Report


def smallest_fleet(scenario: Scenario, objective: Objective, *, least: int, most: int, seed: int = 1) -> Found | None:
    """The smallest fleet, by doubling, then bisection: more GPUs never do worse. None: not even `most` meet it.

    Args:
        least: the smallest fleet to try; a smaller one is overloaded anyway.
    """
    tried: dict[int, Report] = {}

    def holds(executors: int) -> bool:
        tried[executors] = simulate(replace(scenario, executors=executors), seed)
        return objective.is_held(tried[executors])

    found = first(holds, least, most)
    return None if found is None else Found(found, tried[found])


def first(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest n from `least` to `most` with `holds(n)`, for a `holds` that stays true from there on."""
    fails, works, step = least - 1, least, 1
    while not holds(works):
        if works >= most:
            return None
        fails, works, step = works, min(most, works + step), step * 2
    while works - fails > 1:
        middle = (works + fails) // 2
        if holds(middle):
            works = middle
        else:
            fails = middle
    return works


def long_enough(rps: float, slo_s: float, requests: int) -> float:
    """Virtual seconds that are long enough for a percentile: many requests, and many times the objective."""
    return min(600.0, max(requests / rps, 40 * slo_s, 10.0)) if math.isfinite(slo_s) else 60.0
