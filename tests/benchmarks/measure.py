"""The rounds: every system in turn within a round, so that a drift of the machine affects all of them alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from tests.benchmarks.load import SMALL_BYTES, Load, run_wrk
from tests.benchmarks.system import Model, System
from tests.benchmarks.verify import verify_echo, wait_until_it_answers

logger = logging.getLogger(__name__)

# The time for work that earlier callers left behind, before the next level begins: a system that computes 256 requests
# of 50 ms one by one needs 13 s.
_SETTLE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a measurement."""

    models: Sequence[Model]
    connections: Sequence[int]
    rounds: int
    duration_s: int
    warmup_s: int
    payloads: Sequence[int] = (SMALL_BYTES,)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the load generator against one system."""

    system: str
    model: Model
    connections: int
    round: int
    load: Load
    payload_bytes: int = SMALL_BYTES


@dataclass(slots=True)
class Outcome:
    """All samples, and the reasons why systems are missing."""

    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


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
                logger.info("round %d of %d, %s model: %s", number, plan.rounds, model, system.name)
                try:
                    outcome.samples += _measure_one(plan, system, model, number, wrk)
                except Exception as error:  # noqa: BLE001 - one rival's failure must not end the others' run
                    outcome.failures[system.name] = "\n".join([repr(error), *getattr(error, "__notes__", [])])
                    logger.error("%s failed and is left out: %s", system.name, outcome.failures[system.name])
                keep(outcome)
    return outcome


def _measure_one(plan: Plan, system: System, model: Model, number: int, wrk: str) -> list[Sample]:
    samples = []
    with system.running(model):
        verify_echo(system.url, system.shape)
        for payload_bytes, connections in product(plan.payloads, plan.connections):
            drive = partial(
                run_wrk, wrk, system.url, system.shape, connections=connections, payload_bytes=payload_bytes
            )
            if plan.warmup_s:
                drive(duration_s=plan.warmup_s)
                _settle(system)
            load = drive(duration_s=plan.duration_s)
            samples.append(Sample(system.name, model, connections, number, load, payload_bytes))
            logger.info(
                "  %4d bytes, %3d connections: %8.0f requests/s, p50 %7.2f ms, p99 %7.1f ms, %d errors, %d timeouts",
                payload_bytes,
                connections,
                *(load.rps, load.p50_ms, load.p99_ms, load.errors, load.timeouts),
            )
            _settle(system)
    return samples


def _settle(system: System) -> None:
    """Wait until the requests that the generator left in the system's queue are done; they would count against the next
    run.
    """
    wait_until_it_answers(
        system.url, system.shape, dead=system.processes.dead, limit_s=_SETTLE_LIMIT_S, ask_limit_s=30.0
    )
