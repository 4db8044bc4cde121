"""The rounds: every system in turn within a round, so that a drift of the machine affects all of them alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.load import Load, run_wrk
from tests.benchmarks.open_loop import Latencies, TooFewAnswersError, open_loop
from tests.benchmarks.plan import Level, Plan
from tests.benchmarks.shapes import SMALL_BYTES
from tests.benchmarks.system import Model, System
from tests.benchmarks.verify import verify_echo, wait_until_it_answers

logger = logging.getLogger(__name__)

# The time for work that earlier callers left behind, before the next level begins: a system that computes 1,000
# requests of 50 ms one by one needs 50 s.
_SETTLE_LIMIT_S = 120.0
ONE_BY_ONE = "does not batch: 20 requests/s of the 50 ms model, by its construction"


@dataclass(frozen=True, slots=True)
class Sample:
    """One closed loop against one system."""

    system: str
    model: Model
    connections: int
    round: int
    load: Load
    payload_bytes: int = SMALL_BYTES


@dataclass(frozen=True, slots=True)
class OpenSample:
    """One open loop against one system, at half of the most that its closed loops of this round gave."""

    system: str
    model: Model
    payload_bytes: int
    round: int
    latencies: Latencies


@dataclass(frozen=True, slots=True)
class Left:
    """A level at which a system was not measured, and the reason."""

    system: str
    level: Level
    why: str


@dataclass(slots=True)
class Outcome:
    """All samples, and the reasons why systems or levels are missing."""

    samples: list[Sample] = field(default_factory=list)
    open_samples: list[OpenSample] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def gaps(self) -> dict[tuple[str, str], list[str]]:
        """The levels that are missing, by system and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for each in self.left:
            found.setdefault((each.system, each.why), []).append(each.level.title)
        return found


def measure(plan: Plan, systems: Sequence[System], wrk: str, keep: Callable[[Outcome], None]) -> Outcome:
    """Run the plan; `keep` is called after each system, so that an interrupted run leaves what it has.

    A system that fails once is left out of the later rounds, and its failure is in the outcome.
    """
    outcome = Outcome()
    for number in range(1, plan.rounds + 1):
        for model in plan.models:
            for system in systems:
                if system.name in outcome.failures:
                    continue
                if not plan.runs(model, batches=system.batches):
                    if number == 1:
                        outcome.left += [Left(system.name, level, ONE_BY_ONE) for level in plan.of(model)]
                    continue
                logger.info("round %d of %d, %s model: %s", number, plan.rounds, model, system.name)
                try:
                    _measure_one(plan, system, model, number, wrk, outcome)
                except Exception as error:  # noqa: BLE001 - one rival's failure must not end the others' run
                    outcome.failures[system.name] = "\n".join([repr(error), *getattr(error, "__notes__", [])])
                    logger.error("%s failed and is left out: %s", system.name, outcome.failures[system.name])
                keep(outcome)
    return outcome


def _measure_one(plan: Plan, system: System, model: Model, number: int, wrk: str, outcome: Outcome) -> None:
    best: dict[int, float] = {}
    with system.running(model):
        verify_echo(system.url, system.shape)
        for place, level in enumerate(plan.of(model)):
            if place:
                _settle(system)
            logger.info("  %s", level.title)
            if level.connections is None:
                _half_load(plan, system, level, number, best.get(level.payload_bytes, 0.0) / 2, outcome)
            else:
                load = _closed(plan, system, level, wrk)
                outcome.samples.append(Sample(system.name, model, level.connections, number, load, level.payload_bytes))
                best[level.payload_bytes] = max(best.get(level.payload_bytes, 0.0), load.rps)


def _closed(plan: Plan, system: System, level: Level, wrk: str) -> Load:
    assert level.connections is not None

    def drive(duration_s: int) -> Load:
        return run_wrk(
            wrk,
            system.url,
            system.shape,
            connections=level.connections or 1,
            duration_s=duration_s,
            payload_bytes=level.payload_bytes,
        )

    if plan.warmup_s:
        drive(plan.warmup_s)
        _settle(system)
    load = drive(plan.duration_s)
    logger.info(
        "    %8.0f requests/s, p50 %7.2f ms, p99 %7.1f ms, %d errors, %d timeouts",
        *(load.rps, load.p50_ms, load.p99_ms, load.errors, load.timeouts),
    )
    return load


def _half_load(plan: Plan, system: System, level: Level, number: int, rate: float, outcome: Outcome) -> None:
    if not rate:
        outcome.left.append(Left(system.name, level, f"round {number}: no closed loop before it had an answer"))
        return
    try:
        found = open_loop(
            system.url,
            system.shape,
            rate=rate,
            duration_s=plan.duration_s,
            warmup_s=plan.warmup_s,
            payload_bytes=level.payload_bytes,
            seed=number,
        )
    except TooFewAnswersError as error:
        outcome.left.append(Left(system.name, level, f"round {number}: {error}"))
        return
    outcome.open_samples.append(OpenSample(system.name, level.model, level.payload_bytes, number, found))
    logger.info(
        "    %8.0f requests/s offered, p50 %7.2f ms, p99 %7.1f ms, %d failed; %s",
        *(rate, found.p50_ms, found.p99_ms, found.failed, found.client or "the client kept up"),
    )


def _settle(system: System) -> None:
    """Wait until the requests that the generator left in the system's queue are done; they would count against the next
    run.
    """
    wait_until_it_answers(
        system.url, system.shape, dead=system.processes.dead, limit_s=_SETTLE_LIMIT_S, ask_limit_s=60.0
    )
