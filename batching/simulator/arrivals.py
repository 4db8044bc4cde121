"""Arrival processes. Open ones give all their times at once; a closed loop (`Callers`) is run by the engine.

A Poisson process models many independent callers. A non-homogeneous one is made by thinning (Lewis and Shedler, 1979):
times at the highest rate, each kept with the probability rate(t) / highest rate.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from config.tiers import Tier

Times = NDArray[np.float64]


class Arrivals(Protocol):
    """An arrival process."""

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        """Seconds from the start, ascending, all below `duration_s`."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent callers: exponential gaps."""

    rps: float

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        count = random.poisson(self.rps * duration_s)
        # Given their number, the times of a Poisson process are uniform.
        return np.sort(random.random(count) * duration_s)


@dataclass(frozen=True, slots=True)
class Steps:
    """A Poisson process whose rate changes at given moments: ((0, 100), (60, 1000), (120, 100))."""

    steps: Sequence[tuple[float, float]]

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        ends = [at for at, _ in self.steps[1:]] + [math.inf]
        parts = [
            at + Poisson(rps).times(max(0.0, min(end, duration_s) - at), random)
            for (at, rps), end in zip(self.steps, ends, strict=True)
        ]
        return np.concatenate(parts) if parts else np.empty(0)


@dataclass(frozen=True, slots=True)
class Bursts:
    """A Poisson background of `rps`, and every `every_s` a burst of `size` requests within `spread_s`."""

    rps: float
    size: int
    every_s: float
    spread_s: float = 0.01

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        starts = np.arange(self.every_s / 2, duration_s, self.every_s)
        bursts = np.repeat(starts, self.size) + random.random(len(starts) * self.size) * self.spread_s
        together = np.concatenate([Poisson(self.rps).times(duration_s, random), bursts[bursts < duration_s]])
        together.sort()
        return together


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A day as a sine from `low_rps` up to `peak_rps` and back, in `period_s`; starts at its mean, rising."""

    low_rps: float
    peak_rps: float
    period_s: float = 86_400.0

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        mean, swing = (self.peak_rps + self.low_rps) / 2, (self.peak_rps - self.low_rps) / 2
        return _thinned(lambda at: mean + swing * np.sin(2 * np.pi * at / self.period_s), self.peak_rps)(
            duration_s, random
        )


@dataclass(frozen=True, slots=True)
class OnOff:
    """Two rates in turn, each for a random, exponential time: a Markov-modulated Poisson process."""

    on_rps: float
    off_rps: float
    on_s: float
    off_s: float

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        steps = []
        at, on = 0.0, True
        while at < duration_s:
            steps.append((at, self.on_rps if on else self.off_rps))
            at += random.exponential(self.on_s if on else self.off_s)
            on = not on
        return Steps(steps).times(duration_s, random)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded arrivals: times in seconds from the first, and the rank of each where the record has it."""

    at_s: Sequence[float]
    ranks: Sequence[int] | None = None

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        at = np.asarray(self.at_s, dtype=np.float64)
        return at[at < duration_s]


@dataclass(frozen=True, slots=True)
class Callers:
    """A closed loop: a number of callers, each of whom sends its next request `think_s` after its answer."""

    callers: int
    think_s: float = 0.0

    def times(self, duration_s: float, random: np.random.Generator) -> Times:
        """The first request of each caller; they do not start in step."""
        return np.sort(random.random(self.callers) * min(0.01, duration_s))


def read_trace(path: Path) -> Recorded:
    """Read recorded arrivals: JSON lines, or CSV with a header, with `at_ms` (or `at_s`) and optionally `tier`.

    Raises:
        ValueError: names the wrong line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = (
            list(csv.DictReader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file if line.strip()]
        )
    found: list[tuple[float, int]] = []
    for number, row in enumerate(rows, 1):
        try:
            at_s = float(row["at_ms"]) / 1000 if "at_ms" in row else float(row["at_s"])
            tier = Tier(row.get("tier") or Tier.PAID)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: record {number} needs at_ms or at_s, and may have a tier: {error!r}") from error
        found.append((at_s, tier.rank))
    if not found:
        raise ValueError(f"{path} has no arrivals")
    found.sort()
    first = found[0][0]
    known = any("tier" in row for row in rows)
    return Recorded([at - first for at, _ in found], [rank for _, rank in found] if known else None)


def _thinned(rate: Callable[[Times], Times], highest: float) -> Callable[[float, np.random.Generator], Times]:
    def times(duration_s: float, random: np.random.Generator) -> Times:
        at = Poisson(highest).times(duration_s, random)
        return at[random.random(len(at)) * highest < rate(at)]

    return times
