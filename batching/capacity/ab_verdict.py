"""Judges a change of the running system by two measurements, before and after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from batching.capacity.search import Objective

# With fewer requests than this, a percentile depends on a single request.
ENOUGH = 100
# As a share of the load before: with a larger difference the two cannot be compared.
_SAME_LOAD = 0.25
_WORSE_LATENCY = 1.1
# Standard deviations that two counts may differ by chance, and the difference that is too small to matter.
_BY_CHANCE = 2.0
_LITTLE = 0.005


@dataclass(frozen=True, slots=True)
class Watched:
    """One measurement: `asked` requests ended within `seconds`, `lost` of them without an answer; latencies are of the
    others, sorted.
    """

    seconds: float
    asked: int
    lost: int
    in_time: int
    took_s: Sequence[float]
    mean_batch: float

    @property
    def rps(self) -> float:
        return self.asked / self.seconds

    @property
    def goodput_rps(self) -> float:
        return self.in_time / self.seconds

    @property
    def attainment(self) -> float:
        return self.in_time / self.asked if self.asked else 1.0

    def at_ms(self, fraction: float) -> float | None:
        """A percentile of the answered requests, by the nearest rank; None when there were none."""
        if not self.took_s:
            return None
        return self.took_s[max(0, math.ceil(fraction * len(self.took_s)) - 1)] * 1000


def watched(took_s: Sequence[float], *, lost: int, mean_batch: float, seconds: float, slo_s: float) -> Watched:
    """A measurement from the latencies of the answered requests, in any order."""
    in_time = sum(each <= slo_s for each in took_s)
    return Watched(seconds, len(took_s) + lost, lost, in_time, sorted(took_s), mean_batch)


@dataclass(frozen=True, slots=True)
class Verdict:
    keep: bool
    why: str


def judge(before: Watched, after: Watched, objective: Objective) -> Verdict:
    """Keep a change, unless it has made things worse, or there is too little data.

    Worse means a smaller fraction in time, by more than chance; or, at the same fraction, a percentile that is a tenth
    higher.
    """
    if min(before.asked, after.asked) < ENOUGH:
        return Verdict(
            False, f"not confirmed: {before.asked} requests before and {after.asked} after are too few to tell"
        )
    if abs(after.rps / before.rps - 1) > _SAME_LOAD:
        return Verdict(
            False,
            f"not confirmed: the load went from {before.rps:.1f} to {after.rps:.1f}/s, so the runs cannot be compared",
        )
    change = after.attainment - before.attainment
    said = f"{after.attainment:.1%} in time, before {before.attainment:.1%}"
    tails = f"p{objective.fraction * 100:g}"
    then, now = before.at_ms(objective.fraction), after.at_ms(objective.fraction)
    if then is not None and now is not None:
        said += f", {tails} {now:.0f} ms, before {then:.0f}"
    margin = max(_LITTLE, _BY_CHANCE * _deviation(before, after))
    if change < -margin:
        return Verdict(False, f"worse: {said}")
    if change <= margin and (now is None or (then is not None and now > then * _WORSE_LATENCY)):
        return Verdict(False, f"worse: {said}")
    return Verdict(True, f"confirmed: {said}")


def _deviation(before: Watched, after: Watched) -> float:
    """The standard deviation of the difference of the two fractions, if both were the same."""
    part = (before.in_time + after.in_time) / (before.asked + after.asked)
    return math.sqrt(part * (1 - part) * (1 / before.asked + 1 / after.asked))
