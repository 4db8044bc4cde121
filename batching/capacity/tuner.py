"""Finds the policy, size and wait that meet an objective best, for recorded arrivals and a measured model.

    every policy × size × wait ──the busiest stretch──▶ the best few ──the whole record──▶ the best
                                                                              ▲              │
                                                                              └─ its neighbours, while they are better

Every candidate gets the same requests, so two trials differ by the settings alone. The current settings are among the
candidates, and stay unless others are better by more than rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from batching.capacity.search import Objective
from batching.policy import POLICIES, NamedPolicy, default_max_wait_s, make
from batching.simulator import Recorded, Report, Scenario, simulate

WAITS_MS = (2, 5, 10, 20, 50, 100)
# How often the largest batch is halved.
_HALVINGS = 4
# Requests of the first round: enough to separate hopeless candidates from the rest.
_ROUGH_REQUESTS = 2_000
_FINALISTS = 10
_CLIMBS = 6
# Steps to the neighbours of the best candidate.
_STEPS = (2 / 3, 1.5)
# Latencies within 5 %, and a difference of one request in 500, count as the same: no simulation is more accurate.
_SAME_LATENCY = 1.05
_SAME_ATTAINMENT = 0.002
_WITHOUT_WAIT = "idle"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate: a policy, its size and wait, and its other options. `max_wait_ms` None: the policy's default."""

    policy: str
    max_batch_size: int
    max_wait_ms: int | None = None
    options: tuple[tuple[str, float], ...] = ()

    def make(self) -> NamedPolicy:
        """Make the policy. Raises TuneError for options that it does not have."""
        wait_s = None if self.max_wait_ms is None else self.max_wait_ms / 1000
        return make(self.policy, self.max_batch_size, wait_s, dict(self.options))

    def __str__(self) -> str:
        shown = [self.policy, f"max_batch_size={self.max_batch_size}"]
        if self.policy != _WITHOUT_WAIT:
            wait_ms = default_max_wait_s(self.policy) * 1000 if self.max_wait_ms is None else self.max_wait_ms
            shown.append(f"max_wait_ms={wait_ms:g}")
        return " ".join([*shown, *(f"{key}={value:g}" for key, value in self.options)])


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One candidate on the whole record. `tail_ms` is the objective's percentile of all requests, infinite if they were
    lost.
    """

    candidate: Candidate
    report: Report
    attainment: float
    tail_ms: float
    holds: bool
    holds_busier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The input of a search.

    Args:
        scenario: arrivals, service, fleet, limits; its policy is replaced by that of each candidate.
        current: the current settings.
        sizes: the maximum batch sizes to try; `sizes_up_to` makes the usual ones.
        waits_ms: the waits to try, whole milliseconds as bunch.toml has them.
        options: further options of each policy, the same for all candidates.
        busier: settings that also meet the objective at this multiple of the load are preferred.
    """

    scenario: Scenario
    objective: Objective
    current: Candidate
    sizes: Sequence[int]
    waits_ms: Sequence[int] = WAITS_MS
    policies: Sequence[str] = tuple(POLICIES)
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    busier: float = 1.2
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """The result. `best` is `current` when nothing is better; `tried` counts candidates, `requests` those simulated."""

    current: Trial
    best: Trial
    tried: int
    requests: int

    @property
    def why(self) -> str:
        """The reason for the result, in one sentence."""
        now, best = self.current, self.best
        if best.candidate == now.candidate:
            return f"none of {self.tried} settings is better than the current ones" + (
                "" if now.holds else "; none meets the objective: it needs more executors or a faster model"
            )
        said = []
        if not now.holds:
            said.append(f"{best.attainment:.1%} in time instead of {now.attainment:.1%}")
        elif best.holds_busier and not now.holds_busier:
            said.append("it also meets the objective in a busier hour")
        if best.tail_ms * _SAME_LATENCY < now.tail_ms < math.inf:
            said.append(f"{best.tail_ms:.0f} ms instead of {now.tail_ms:.0f} at the objective's percentile")
        return ", ".join(said) + ("" if best.holds else "; but no setting meets the objective")


def sizes_up_to(most: int, batch_sizes: Sequence[int] = ()) -> tuple[int, ...]:
    """`most` and its halves, largest first, since a larger size is safer in a burst that the record lacks.

    With `batch_sizes`, those of them that are at most `most`.
    """
    if batch_sizes:
        return tuple(size for size in reversed(batch_sizes) if size <= most) or (batch_sizes[0],)
    return tuple(dict.fromkeys(max(1, most >> halvings) for halvings in range(_HALVINGS + 1)))


def candidates(question: Question) -> Iterator[Candidate]:
    """The candidates of the first round: the current one, then every policy with every size and wait; each once."""
    slo_ms = question.objective.slo_s * 1000
    waits = sorted({min(wait, int(slo_ms)) for wait in question.waits_ms})
    seen = {question.current}
    yield question.current
    for policy, size in itertools.product(question.policies, question.sizes):
        options = dict(question.options.get(policy, {}))
        if policy == "slo":
            # The policy knows the callers' deadlines, not the objective.
            options["slo_ms"] = slo_ms
        for wait_ms in [None] if policy == _WITHOUT_WAIT else waits:
            each = Candidate(policy, size, wait_ms, tuple(sorted(options.items())))
            if each not in seen:
                seen.add(each)
                yield each


def pick(trials: Iterable[Trial]) -> Trial:
    """The best trial; the first of equal ones.

    Trials that meet the objective also at a busier hour come first, then those that meet it now, then those with the
    largest fraction in time; among equals the lowest percentile wins.
    """
    left = list(trials)
    left = [each for each in left if each.holds] or left
    left = [each for each in left if each.holds_busier] or left
    if not left[0].holds:
        most = max(each.attainment for each in left)
        left = [each for each in left if each.attainment >= most - _SAME_ATTAINMENT]
    quickest = min(each.tail_ms for each in left)
    return next(each for each in left if each.tail_ms <= quickest * _SAME_LATENCY)


def tune(question: Question) -> Found:
    """Run the search. Pure: the same question has the same result, to the last digit."""
    trials = _Trials(question)
    rough = _busiest(question.scenario)
    left = [trials.rough(each, rough) for each in candidates(question)]
    finalists: list[Trial] = []
    while left and len(finalists) < _FINALISTS:
        finalists.append(pick(left))
        left.remove(finalists[-1])
    # The current settings come first, so they stay when nothing is better.
    best = pick([trials.whole(each) for each in (question.current, *(each.candidate for each in finalists))])
    for _ in range(_CLIMBS):
        better = pick([best, *map(trials.whole, _neighbours(best.candidate, question))])
        if better is best:
            break
        best = better
    return Found(trials.whole(question.current), best, trials.tried, trials.requests)


class _Trials:
    """Runs candidates, each once."""

    def __init__(self, question: Question) -> None:
        self.requests = 0
        self._question = question
        self._whole: dict[Candidate, Trial] = {}
        self._rough: set[Candidate] = set()
        self._busier = _sped_up(question.scenario, question.busier)

    @property
    def tried(self) -> int:
        return len(self._rough | self._whole.keys())

    def rough(self, candidate: Candidate, scenario: Scenario) -> Trial:
        self._rough.add(candidate)
        return self._trial(candidate, scenario)

    def whole(self, candidate: Candidate) -> Trial:
        if candidate not in self._whole:
            trial = self._trial(candidate, self._question.scenario)
            if trial.holds:
                busier = self._run(candidate, self._busier)
                trial = replace(trial, holds_busier=self._question.objective.is_held(busier))
            self._whole[candidate] = trial
        return self._whole[candidate]

    def _trial(self, candidate: Candidate, scenario: Scenario) -> Trial:
        report, objective = self._run(candidate, scenario), self._question.objective
        attainment = objective.attainment(report)
        holds = attainment >= objective.fraction
        return Trial(candidate, report, attainment, _tail_ms(report, objective.fraction), holds)

    def _run(self, candidate: Candidate, scenario: Scenario) -> Report:
        policy = candidate.make()
        report = simulate(
            replace(scenario, policy=lambda: policy, max_batch_size=candidate.max_batch_size), self._question.seed
        )
        self.requests += report.requests
        return report


def _neighbours(candidate: Candidate, question: Question) -> Iterable[Candidate]:
    """One step up and down of size and wait, within the values that may be tried."""
    for step in _STEPS:
        size = round(candidate.max_batch_size * step)
        # A maximum between two sizes of the model would be padded.
        if min(question.sizes) <= size <= max(question.sizes) and not question.scenario.batch_sizes:
            yield replace(candidate, max_batch_size=size)
        if candidate.max_wait_ms:
            wait_ms = round(candidate.max_wait_ms * step)
            if 1 <= wait_ms <= min(max(question.waits_ms), question.objective.slo_s * 1000):
                yield replace(candidate, max_wait_ms=wait_ms)


def _busiest(scenario: Scenario) -> Scenario:
    """The stretch of the record in which `_ROUGH_REQUESTS` requests came fastest; the whole record if it is short."""
    recorded = _recorded(scenario)
    at = np.asarray(recorded.at_s)
    if len(at) <= _ROUGH_REQUESTS:
        return scenario
    first = int(np.argmin(at[_ROUGH_REQUESTS - 1 :] - at[: len(at) - _ROUGH_REQUESTS + 1]))
    part = slice(first, first + _ROUGH_REQUESTS)
    ranks = None if recorded.ranks is None else recorded.ranks[part]
    times = at[part] - at[first]
    return replace(scenario, arrivals=Recorded(times.tolist(), ranks), duration_s=float(times[-1]) + 1e-3)


def _sped_up(scenario: Scenario, factor: float) -> Scenario:
    recorded = _recorded(scenario)
    at = np.asarray(recorded.at_s) / factor
    return replace(
        scenario, arrivals=Recorded(at.tolist(), recorded.ranks), duration_s=scenario.duration_s / factor + 1e-3
    )


def _recorded(scenario: Scenario) -> Recorded:
    if not isinstance(scenario.arrivals, Recorded):
        raise TypeError(f"needs recorded arrivals, not {scenario.arrivals!r}")
    return scenario.arrivals


def _tail_ms(report: Report, fraction: float) -> float:
    """The percentile by the nearest rank, of all requests: a refused or unanswered one counts as infinite."""
    took = np.sort(np.concatenate(report.latencies_s))
    came = len(took) + report.requests - report.answered
    place = max(0, math.ceil(fraction * came) - 1)
    return float(took[place]) * 1000 if place < len(took) else math.inf
