"""The circuit breakers of a worker's executors: one for each model, or for each replica of an API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batching.claim.shared_breaker import SharedBreaker
from batching.policy import Breaker
from config.settings import ModelSettings
from tasks.fleet.registry_reader import BREAKER_STATES
from workers.executor.process_executor import ProcessExecutor

# A replica that is away fails at once, so it would take most requests: it must stop before they have used up their
# attempts there.
_FAILURES_OF_A_REPLICA = 2


def of_executors(executors: Sequence[tuple[ModelSettings, ProcessExecutor]]) -> dict[str, SharedBreaker]:
    """The breaker of each executor, by its name."""
    shared: dict[tuple[str, str], SharedBreaker] = {}
    found = {}
    for model, executor in executors:
        failures = {"failures": _FAILURES_OF_A_REPLICA} if len(model.replicas) > 1 else {}
        breaker = SharedBreaker(Breaker(**failures))
        found[executor.name] = shared.setdefault((model.name, executor.placement.source), breaker)
    return found


def reset(breakers: Mapping[str, SharedBreaker], model: str) -> str:
    """Close the breakers of a model; returns the worst state that one was in. Raises KeyError for a model not run
    here.
    """
    own = [each for of, each in breakers.items() if of.rpartition("/")[0] == model]
    if not own:
        raise KeyError(model)
    worst = max((each.state.value for each in own), key=BREAKER_STATES.index)
    for breaker in own:
        breaker.reset()
    return worst
